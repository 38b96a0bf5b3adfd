"""The words and the sentence patterns of the tiny set, as data.

A clause is a subject and a predicate. A predicate of `HOLDS` says what its polar word says, one of `FLIPS` the
opposite. Slots in braces are filled from `NEUTRAL` (never a cue) or `POLAR` (a positive and a negative word list):
{A} adjective, {V} verb, third person, {v} the same verb's base form, {T} noun; {B} is an adjective that speaks
against the label of its sentence. What follows an article begins with a consonant, so that "a" is always right, and no word
stands in two lists, so that a sentence can be led back to its pattern.
"""

from typing import Dict, Tuple

Phrases = Tuple[str, ...]

POSITIVE_ADJECTIVES = "brilliant charming clever fresh funny good great gripping lively moving superb warm witty wonderful"
NEGATIVE_ADJECTIVES = "bad boring clumsy dreary dull flat hollow lifeless messy poor shallow silly tedious terrible"

# Slot -> (negative words, positive words), indexed by polarity 0 or 1.
POLAR: Dict[str, Tuple[Phrases, Phrases]] = {
    "A": (tuple(NEGATIVE_ADJECTIVES.split()), tuple(POSITIVE_ADJECTIVES.split())),
    "V": (
        tuple("bores disappoints drags fails irritates stumbles".split()),
        tuple("charms delights entertains impresses shines works".split()),
    ),
    "v": (
        tuple("bore disappoint drag fail irritate stumble".split()),
        tuple("charm delight entertain impress shine work".split()),
    ),
    "T": (
        tuple("chore disaster failure letdown mess".split()),
        tuple("gem joy pleasure treat triumph".split()),
    ),
}

NEUTRAL: Dict[str, Phrases] = {
    "N": tuple(
        "comedy drama fable film movie musical mystery picture remake romance sequel story thriller western".split()
    ),
    "P": tuple(
        "acting cast dialogue direction editing ending finale hero humor lead music pacing plot premise script "
        "villain".split()
    ),
    "W": tuple("brother cousin daughter father friend mother neighbor sister teacher uncle".split()),
    "L": tuple("cinema club festival library museum school theater".split()),
    "D": tuple("friday month night summer sunday week winter year".split()),
    "I": tuple("genuinely quite really simply so thoroughly truly very".split()),
}

BARE_SUBJECTS: Phrases = ("the {P}", "the {N}", "this {N}", "the {P} of the {N}")
SHORT_SUBJECTS: Phrases = (
    *BARE_SUBJECTS,
    "the {P} in this {N}",
    "the rest of the {N}",
)
LONG_SUBJECTS: Phrases = (
    "the {N} we saw last {D}",
    "the {N} my {W} showed us",
    "the {P} that my {W} kept talking about",
    "the {N} that they showed at the {L} last {D}",
    "the {N} , which my {W} and i saw at the {L} ,",
    "the {P} of the {N} that opened at the {L} last {D}",
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

# What a speaker says of the clause that follows: the cue stands at the start, the word it turns far behind it.
REPORTS_HOLD: Phrases = (
    "i think",
    "i often felt",
    "everybody told me",
    "we all believed",
    "my {W} always said",
    "it is true",
)
REPORTS_FLIP: Phrases = (
    "i do not think",
    "i never felt",
    "nobody told me",
    "we hardly believed",
    "my {W} never said",
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

# Two clauses that agree, and two that do not: {d} decides the label, {c} says the opposite.
AGREEMENTS: Phrases = ("{c} and {d}", "{c} , and {d}", "{c} because {d}", "{c} , so {d}")
CONTRASTS: Phrases = ("{c} but {d}", "{c} , but {d}", "{c} yet {d}", "{c} , and yet {d}")
CONCESSIONS_FIRST: Phrases = ("although {c} , {d}", "though {c} , {d}", "while {c} , {d}", "even if {c} , {d}")
CONCESSIONS_LAST: Phrases = (
    "{d} even though {c}",
    "{d} , even though {c}",
    "{d} despite the fact that {c}",
    "{d} in spite of the fact that {c}",
)

# A subject whose relative clause speaks against the predicate that follows.
DISTRACTING_SUBJECTS: Phrases = (
    "the {N} that my {W} called {B}",
    "the {N} , which my {W} found {B} ,",
    "the {P} that everybody at the {L} called {B}",
    "the {N} that looked {B} in the trailer",
    "the {N} whose first half was {B}",
    "the {P} of the {N} that my {W} found {B}",
)

OPENERS: Phrases = ("in short ,", "all in all ,", "for my money ,", "as my {W} noticed ,")
TAILS: Phrases = ("in the end", "from start to finish", "for the whole two hours", "on a second viewing")
