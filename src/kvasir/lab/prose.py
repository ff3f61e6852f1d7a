"""Plain English made up on the spot: filler without an end, without digits, the same for the same seed."""

import random
from collections.abc import Iterator

_PEOPLE = (
    *("harbour master", "baker", "surveyor", "young teacher", "clockmaker", "ferryman", "librarian", "gardener"),
    *("blacksmith", "postwoman", "old captain", "doctor", "carpenter", "beekeeper", "weaver", "night porter"),
)
_PLACES = (
    *("the northern quay", "a narrow street", "the old mill", "the valley", "the market hall", "a quiet inn"),
    *("the edge of the forest", "the lighthouse", "the upper village", "a courtyard", "the salt marsh", "the chapel"),
)
_ACTIONS = (
    *("repaired a broken lantern", "counted the sacks of grain", "wrote a long letter to a cousin", "mended two nets"),
    *("argued about the price of wool", "waited for the evening boat", "drew a map of the river", "sorted dry herbs"),
    *("told a story nobody believed", "swept the snow from the steps", "tuned an old violin", "planted a row of beans"),
    *("carried water up the hill", "read the newspaper twice", "painted the door green", "lost a glove in the mud"),
)
_TIMES = (
    *(
        "Early in the morning",
        "After the rain",
        "On the last day of the fair",
        "Before anyone was awake",
        "That winter",
    ),
    *("In the middle of the week", "While the bells were ringing", "Toward evening", "Some years later", "At low tide"),
)
_REASONS = (
    *("because the road was closed", "although nobody had asked for it", "as the custom of the place demanded"),
    *("while the others were still at supper", "so that the children would not worry", "without saying a word"),
    *("since the wind had turned", "until the lamp burned down", "as if it were the most natural thing in the world"),
)
_REMARKS = (
    *("The dog slept through all of it.", "Nothing more was said about the matter.", "The tea had gone cold by then."),
    *("It was the kind of day that people remember.", "Smoke rose straight from the chimneys.", "A gull complained."),
    *("The accounts were never quite right afterwards.", "Somebody laughed in the next room.", "Then the fog came in."),
)
_PATTERNS = (
    "{time}, the {person} of {place} {action} {reason}.",
    "The {person} {action} near {place}, {reason}.",
    "{time} the {person} and the {other} met at {place}; one of them {action}.",
    "Nobody at {place} noticed that the {person} {action}.",
    "It is said that the {person} once {action} {reason}, and that the {other} helped.",
    "{remark}",
)


def sentences(seed: int) -> Iterator[str]:
    """Sentences for ever; neighbours seldom repeat, and any long stretch is unlike any other."""
    rng = random.Random(seed)
    while True:
        person, other = rng.sample(_PEOPLE, 2)
        yield rng.choice(_PATTERNS).format(
            time=rng.choice(_TIMES),
            person=person,
            other=other,
            place=rng.choice(_PLACES),
            action=rng.choice(_ACTIONS),
            reason=rng.choice(_REASONS),
            remark=rng.choice(_REMARKS),
        )


OPENINGS = (
    *("Tell me a long story about a lighthouse.", "Explain how bread is made, step by step."),
    *("Describe a walk through an old city in detail.", "How do birds find their way over the sea?"),
    *("Write a report on the history of a small railway.", "Give advice to somebody who starts to learn the piano."),
    *("What happens inside a star?", "Write a letter from a traveller in the mountains."),
    *("Explain how a computer remembers things.", "Describe the four seasons on a farm."),
    *("Tell me about the life of a river from source to sea.", "How would you plan a garden for a school?"),
    *("Write a dialogue between a sailor and a clockmaker.", "Explain why the sky changes its colour."),
    *("Summarise what makes a good book.", "Describe a busy kitchen in a large hotel."),
    *("What should one know before keeping bees?", "Tell the story of a lost letter."),
    *("Explain the rules of a game that you invent.", "Write a speech for the opening of a library."),
)
"""What free generation answers, and what a model is asked when it writes its own text to be measured on."""
