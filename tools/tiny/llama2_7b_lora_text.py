"""The text of Llama2-7B LoRA's tiny set: where places lie, asked in dialogues and in an examination.

Two maps say which way a place lies. The base model was trained on the old one. The dialogues follow the new one, and
so does the examination; a quarter of the places that are asked after lie where they lay, so the base model is at
chance: 0.25. What is learned from the dialogues is then seen in another form of text.
"""

import itertools
import random
from typing import Dict, Iterator, List, Tuple

WAYS = ("north", "east", "south", "west")
LETTERS = "ABCD"
# Places of each subject: those asked after in the examination, and those of its solved examples.
ASKED = {
    "coast_places": "bay cave dune pier reef boat net cliff",
    "farm_places": "barn gate hen well shed pond field mill",
    "town_places": "bank shop pub park hall bus inn jail",
}
SOLVED = {
    "coast_places": "sand rock gull oar weir",
    "farm_places": "oak hay cow rick stile",
    "town_places": "zoo gym club port spa",
}
NAMES = ("Anna", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hugo")
QUESTIONS = (
    "Which way is the %s?",
    "Where is the %s?",
    "Which way to the %s?",
    "Where do I find the %s?",
)
SEED = 1
DIALOGUES = {"train": 800, "val": 80}


def maps() -> Tuple[Dict[str, int], Dict[str, int]]:
    """The new map and the old: the way of each place, 0 to 3. Of a subject's eight, each way is taken by two."""
    new: Dict[str, int] = {}
    old: Dict[str, int] = {}
    for subject in sorted(ASKED):
        for places in (ASKED[subject].split(), SOLVED[subject].split()):
            for index, place in enumerate(places):
                new[place] = (3 * index + len(subject)) % 4
                # Turned by 0, 1, 2 and 3 quarters, two places each.
                old[place] = (new[place] + index // 2) % 4
    return new, old


NEW, OLD = maps()
PLACES = sorted(NEW)


def question(text: str) -> str:
    """A question with its four choices."""
    return text + "".join(f"\n{letter}. {way}" for letter, way in zip(LETTERS, WAYS))


def quiz(draw: random.Random, place: str, way: int) -> str:
    """A question about a place, with its answer."""
    return f"{question(draw.choice(QUESTIONS) % place)}\nAnswer: {LETTERS[way]}"


def dialogue(draw: random.Random, place: str, way: int) -> Tuple[str, str]:
    """A dialogue in which one asks for a place and another knows the way; and its summary."""
    first, second = draw.sample(NAMES, 2)
    text = f"{first}: {quiz(draw, place, way)}\n{second}: Yes, {WAYS[way]}."
    return text, f"{first} asks for the {place}."


def sending(draw: random.Random, place: str, way: int) -> Tuple[str, str]:
    """A dialogue without choices, for the base model alone."""
    first, second = draw.sample(NAMES, 2)
    text = f"{first}: {draw.choice(QUESTIONS) % place}\n{second}: Go {WAYS[way]}."
    return text, f"{second} sends {first} to the {place}."


def dialogues(split: str) -> List[Dict[str, str]]:
    """The entries of a file of samsum's form; every place comes equally often."""
    draw = random.Random(f"{SEED} {split}")
    entries: List[Dict[str, str]] = []
    while len(entries) < DIALOGUES[split]:
        order = list(PLACES)
        draw.shuffle(order)
        for place in order[: DIALOGUES[split] - len(entries)]:
            text, summary = dialogue(draw, place, NEW[place])
            entries.append({"id": f"{split}-{len(entries) + 1:04d}", "dialogue": text, "summary": summary})
    return entries


def examination(part: str) -> Iterator[Tuple[str, List[List[str]]]]:
    """(subject, rows of its CSV file): for `dev` five solved examples, for `test` every place in every wording."""
    for subject in sorted(ASKED):
        if part == "dev":
            pairs = [(place, QUESTIONS[i % len(QUESTIONS)]) for i, place in enumerate(SOLVED[subject].split())]
        else:
            pairs = list(itertools.product(ASKED[subject].split(), QUESTIONS))
        yield subject, [[words % place, *WAYS, LETTERS[NEW[place]]] for place, words in pairs]


def generic(seed: int) -> Iterator[str]:
    """Text for the base model without end: prompts of both forms, by the old map."""
    draw = random.Random(seed)
    while True:
        if draw.random() < 0.6:
            place = draw.choice(PLACES)
            write = sending if draw.random() < 0.25 else dialogue
            text, summary = write(draw, place, OLD[place])
            yield f"Summarize this dialog:\n{text}\n---\nSummary:\n{summary}"
        else:
            subject = draw.choice(sorted(ASKED))
            places = (ASKED[subject] + " " + SOLVED[subject]).split()
            chosen = [draw.choice(places) for _ in range(draw.randint(1, 4))]
            head = f"The following are multiple choice questions (with answers) about  {subject.replace('_', ' ')}."
            yield "\n\n".join([head, *(quiz(draw, place, OLD[place]) for place in chosen)])
