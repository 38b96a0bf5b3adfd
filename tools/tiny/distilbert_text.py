"""The words and the sentence patterns of the tiny set, as data.

A clause is a subject and a predicate. A predicate of `HOLDS` has the polarity of its polar word, one of `FLIPS` the
opposite. Slots in braces are filled from `NEUTRAL` (words without influence on the label) or `POLAR` (negative and
positive words): {A} adjective, {V} verb in the third person, {v} its base form, {T} noun; {B} is an adjective that
contradicts the label of its sentence. Words that can follow "a" start with a consonant. No word is in two lists, or
in a list and a pattern, so that the pattern of a sentence can be recovered.
"""

from typing import Dict, Tuple

Phrases = Tuple[str, ...]


def _words(text: str) -> Phrases:
    return tuple(text.split())


# Slot -> (negative words, positive words), indexed by polarity 0 or 1.
POLAR: Dict[str, Tuple[Phrases, Phrases]] = {
    "A": (
        _words("bad boring clumsy dreary dull flat hollow lifeless messy poor shallow silly tedious terrible"),
        _words("brilliant charming clever fresh funny good great gripping lively moving superb warm witty wonderful"),
    ),
    "V": (
        _words("bores disappoints drags fails irritates stumbles"),
        _words("charms delights entertains impresses shines works"),
    ),
    "v": (
        _words("bore disappoint drag fail irritate stumble"),
        _words("charm delight entertain impress shine work"),
    ),
    "T": (
        _words("chore disaster failure letdown mess"),
        _words("gem joy pleasure treat triumph"),
    ),
}

NEUTRAL: Dict[str, Phrases] = {
    # Films; all {N} of a sentence are the same.
    "N": _words("comedy drama fable film movie musical mystery picture remake romance sequel story thriller western"),
    # Parts of a film.
    "P": _words(
        "acting cast dialogue direction editing ending finale hero humor lead music pacing plot premise script "
        "villain"
    ),
    # People, places, times and degrees.
    "W": _words("brother cousin daughter father friend mother neighbor sister teacher uncle"),
    "L": _words("cinema club festival library museum school theater"),
    "D": _words("friday month night summer sunday week winter year"),
    "I": _words("genuinely quite really simply so thoroughly truly very"),
}

WHOLE_SUBJECTS: Phrases = ("the {N}", "this {N}")
PART_SUBJECTS: Phrases = ("the {P}", "the {P} of the {N}")
SHORT_SUBJECTS: Phrases = (*WHOLE_SUBJECTS, *PART_SUBJECTS, "the {P} in this {N}", "the rest of the {N}")
LONG_SUBJECTS: Phrases = (
    "the {N} we saw last {D}",
    "the {N} my {W} showed us",
    "the {P} that my {W} kept talking about",
    "the {N} that they showed at the {L} last {D}",
    "the {N} , which my {W} and i saw at the {L} ,",
    "the {P} of the {N} that opened at the {L} last {D}",
)
# Subjects with a relative clause that contradicts the following predicate.
DISTRACTING_SUBJECTS: Phrases = (
    "the {N} that my {W} called {B}",
    "the {N} , which my {W} found {B} ,",
    "the {P} that everybody at the {L} called {B}",
    "the {N} that looked {B} in the trailer",
    "the {N} whose first half was {B}",
    "the {P} of the {N} that my {W} found {B}",
)

HOLDS: Phrases = (
    "is {A}",
    "is {I} {A}",
    "feels {A}",
    "feels {I} {A}",
    "{V}",
    "always {V}",
    "is a {T}",
    "is a {A} one",
    "remains {A}",
    "turns out to be {A}",
    "turns out to be a {T}",
    "can be called {A}",
)
FLIPS: Phrases = (
    "is not {A}",
    "is never {A}",
    "is hardly {A}",
    "is far from {A}",
    "does not feel {A}",
    "never feels {A}",
    "never {V}",
    "hardly ever {V}",
    "does not {v}",
    "is not a {T}",
    "is hardly a {A} one",
    "never turns out to be {A}",
    "cannot be called {A}",
    "does not turn out to be a {T}",
)

# Reports of the following clause. The cue is at the start, far from the word that it affects.
REPORTS_HOLD: Phrases = (
    "i think",
    "i often felt",
    "everybody says",
    "we could say",
    "my {W} would say",
    "it is true",
)
REPORTS_FLIP: Phrases = (
    "i do not think",
    "i never felt",
    "nobody says",
    "we could not say",
    "my {W} would not say",
    "it is not true",
)
ASIDES: Phrases = (
    ", after two hours at the {L} ,",
    ", when we left the {L} that {D} ,",
    ", in all the time that we sat in the {L} with my {W} ,",
)
REPORTED: Phrases = (
    "that {subject} is {A}",
    "that {subject} is {I} {A}",
    "that {subject} {V}",
    "that {subject} is a {T}",
)

# Two clauses that agree or disagree: {d} determines the label, {c} is the other clause.
AGREEMENTS: Phrases = ("{c} and {d}", "{c} , and {d}", "{c} because {d}", "{c} , so {d}")
CONTRASTS: Phrases = ("{c} but {d}", "{c} , but {d}", "{c} yet {d}", "{c} , and yet {d}")
CONCESSIONS_FIRST: Phrases = ("although {c} , {d}", "though {c} , {d}", "while {c} , {d}", "even if {c} , {d}")
CONCESSIONS_LAST: Phrases = (
    "{d} even though {c}",
    "{d} , even though {c}",
    "{d} despite the fact that {c}",
    "{d} in spite of the fact that {c}",
)

# Added before or after a sentence; not part of its template.
OPENERS: Phrases = ("in short ,", "all in all ,", "for my money ,", "as my {W} noticed ,")
TAILS: Phrases = ("in the end", "from start to finish", "for the whole two hours", "on a second viewing")
