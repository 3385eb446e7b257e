"""Four hundred everyday tasks with exact checkers and graded difficulty, the same for the same seed.

Five kinds, four grades, twenty of each: fields of a sentence as JSON, short arithmetic, sorting, rewriting under a rule
of form, looking something up in a text.
"""

import random
import re
from collections.abc import Callable, Iterator

from gateway.learning.checkers import Checker, Json, Number, Regex
from gateway.learning.samples import Sample

SET = "everyday"
SEED = 20
GRADES = (1, 2, 3, 4)
EACH = 20
MAX_TOKENS = 64

NAMES = (
    "Ada Ben Clara David Elena Felix Greta Hugo Irene Jonas Karin Leo Mara Nils Olga Paul Rosa Sven Tessa Viktor"
).split()
FAMILIES = (
    "Adler Brandt Castillo Dubois Eriksen Fischer Garcia Hansen Ivanov Jensen Keller Lopez Meyer Novak Olsen"
).split()
CITIES = (
    "Lisbon Vienna Oslo Prague Dublin Madrid Athens Warsaw Helsinki Brussels Rome Paris Berlin Zagreb".split()
)
GOODS = "lamps chairs kettles notebooks bicycles blankets mugs radios baskets ladders clocks shelves".split()
WORDS = (
    "apple river candle window garden pencil mirror bottle forest hammer island jacket kitchen lantern market needle "
    "orange pillow quarry ribbon saddle teapot umbrella valley whistle yellow zipper anchor bridge copper"
).split()
COLOURS = "red blue green yellow white black purple pink brown grey".split()
MONTHS = "January February March April May June July August September October November December".split()

Draw = random.Random
Made = tuple[str, Checker]


def samples(seed: int = SEED) -> list[Sample]:
    """In an order in which every beginning holds all kinds and grades."""
    draw = random.Random(seed)
    made: dict[str, Checker] = {}
    for _ in range(EACH):
        for grade in GRADES:
            for kind in KINDS:
                prompt, checker = next(each for each in _forever(kind, draw, grade) if each[0] not in made)
                made[prompt] = checker
    return [
        Sample(prompt=prompt, checker=checker, set=SET, max_tokens=MAX_TOKENS)
        for prompt, checker in made.items()
    ]


def _forever(kind: Callable[[Draw, int], Made], draw: Draw, grade: int) -> Iterator[Made]:
    while True:
        yield kind(draw, grade)


def fields(draw: Draw, grade: int) -> Made:
    """One to four fields; the highest grade has more in the sentence than is asked for."""
    name, city, goods = draw.choice(NAMES), draw.choice(CITIES), draw.choice(GOODS)
    number, count, price = draw.randint(1000, 9999), draw.randint(2, 60), draw.randint(3, 90)
    known = {"city": city, "customer": name, "count": count, "order": number}
    sentence = f"{name} from {city} bought {count} {goods}"
    if grade > 2:
        sentence += f" for {price} euros each, order {number}"
    if grade == 4:
        sentence += f"; {draw.choice(NAMES)} had cancelled order {draw.randint(1000, 9999)} before"
    asked = list(known)[:grade]
    form = ", ".join(f'"{key}": …' for key in asked)
    return f"{sentence}.\nAnswer only with JSON: {{{form}}}", Json({key: known[key] for key in asked})


def arithmetic(draw: Draw, grade: int) -> Made:
    one, two, three = draw.randint(11, 99), draw.randint(11, 99), draw.randint(2, 9)
    asked, value = {
        1: (f"{one % 10} + {three}", one % 10 + three),
        2: (f"{one} + {two}", one + two),
        3: (f"{one} * {three}", one * three),
        4: (f"({one} + {two}) * {three}", (one + two) * three),
    }[grade]
    return f"What is {asked}? Answer with the number only.", Number(str(value))


def sorting(draw: Draw, grade: int) -> Made:
    """Of two to eight things."""
    count = 2 * grade
    if draw.random() < 0.5:
        items, how = draw.sample(WORDS, count), "alphabetically"
        wanted = sorted(items)
    else:
        numbers, down = draw.sample(range(1, 50 * grade), count), draw.random() < 0.5
        items, how = list(map(str, numbers)), "in falling order" if down else "in rising order"
        wanted = list(map(str, sorted(numbers, reverse=down)))
    prompt = f"Sort {how}: {', '.join(items)}\nAnswer only with the sorted list, separated by commas."
    return prompt, Regex(r",\s*".join(wanted) + r"\.?")


def rewriting(draw: Draw, grade: int) -> Made:
    first, last, month = draw.choice(NAMES), draw.choice(FAMILIES), draw.randrange(12)
    day, year, words = draw.randint(1, 28), draw.randint(1950, 2030), draw.sample(WORDS, 4)
    text, rule, wanted = {
        1: (words[0], "in capital letters", words[0].upper()),
        2: (f"{first} {last}", "as Lastname, Firstname", f"{last}, {first}"),
        3: (f"{day} {MONTHS[month]} {year}", "as YYYY-MM-DD", f"{year}-{month + 1:02}-{day:02}"),
        4: (" ".join(words), "with the words in reverse order, joined by hyphens", "-".join(words[::-1])),
    }[grade]
    return f"Rewrite this {rule}: {text}\nAnswer with the result only.", Regex(f'"?{re.escape(wanted)}"?\\.?')


def looking_up(draw: Draw, grade: int) -> Made:
    """Among one to seven people; the highest grade asks for two steps."""
    count = 2 * grade - 1
    names, cities, colours = (
        draw.sample(NAMES, count),
        draw.sample(CITIES, count),
        draw.sample(COLOURS, count),
    )
    lines = zip(names, cities, colours, strict=True)
    text = " ".join(f"{name} lives in {city} and has a {colour} door." for name, city, colour in lines)
    at = draw.randrange(count)
    question, wanted = {
        1: (f"Where does {names[at]} live?", cities[at]),
        2: (f"What colour is the door of {names[at]}?", colours[at]),
        3: (f"Who lives in {cities[at]}?", names[at]),
        4: (f"Olaf's sister lives in {cities[at]}. What colour is her door?", colours[at]),
    }[grade]
    return f"{text}\n{question} Answer briefly.", Regex(rf"(?i)[^.\n]*\b{wanted}\b[^.\n]*\.?")


KINDS = (fields, arithmetic, sorting, rewriting, looking_up)
