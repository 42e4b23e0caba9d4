"""Flow charts, scenes of shapes and clock faces: `draw(rng, width, height) -> Picture`, answers from what was drawn."""

from itertools import pairwise
from math import cos, sin, tau
from random import Random

from wdspack.demo.canvas import THEMES, Canvas, Picture, Point, blend

_STEPS = (
    *("Order", "Check", "Pack", "Ship", "Invoice", "Pay", "Archive", "Review", "Draft"),
    *("Print", "Sort", "Weigh", "Label", "Store", "Test", "Build", "Deploy", "Plan"),
)
_COLOURS = {
    "red": "#d84a4a",
    "blue": "#3f6fd1",
    "green": "#3f9e63",
    "yellow": "#f0c23b",
    "purple": "#8e5bc0",
    "black": "#2a2d34",
}
_SHAPES = ("circle", "square", "triangle", "star")


def flow_chart(rng: Random, width: int, height: int) -> Picture:
    """Boxes in two to six ranks; every arrow leads from one rank to the next, left to right or top to bottom."""
    theme = rng.choice(THEMES)
    canvas = Canvas(width, height, theme)
    em = canvas.em
    across = width >= height
    run, breadth = (width, height) if across else (height, width)
    depth = max(2, min(6, int(run / em / (6.5 if across else 4.5))))
    widest = max(1, min(3, int(breadth / em / (4.5 if across else 6.5))))
    labels = iter(rng.sample(_STEPS, depth * widest))
    ranks = [[next(labels) for _ in range(rng.randint(1, widest))] for _ in range(depth)]
    arrows = sorted({arrow for pair in pairwise(ranks) for arrow in _arrows(rng, *pair)})
    half = (min(width / (depth if across else widest) * 0.36, em * 3.2), em * 1.15)
    tint = rng.choice(theme.accents)
    places = dict[str, Point]()
    for i, rank in enumerate(ranks):
        for j, name in enumerate(rank):
            along, aside = (i + 0.5) / depth * run, (j + 0.5) / len(rank) * breadth
            places[name] = (along, aside) if across else (aside, along)
    for one, two in arrows:
        (x0, y0), (x1, y1) = places[one], places[two]
        ends = ((x0 + half[0], y0), (x1 - half[0], y1)) if across else ((x0, y0 + half[1]), (x1, y1 - half[1]))
        _arrow(canvas, *ends, em)
    for i, rank in enumerate(ranks):
        fill = blend(theme.paper, tint, 0.18 + 0.1 * (i % 2))
        for name in rank:
            x, y = places[name]
            box = (x - half[0], y - half[1], x + half[0], y + half[1])
            canvas.rect(box, fill, radius=em * 0.45, outline=tint, stroke=max(1.0, em / 11))
            canvas.text((x, y), name, em * 0.95, theme.ink, anchor="mm", width=half[0] * 1.8)
    asked = rng.choice([name for rank in ranks[:-1] for name in rank])
    after = [two for one, two in arrows if one == asked]
    source = rng.choice(ranks[0])
    return Picture(
        canvas.finish(),
        {"kind": "flow", "ranks": ranks, "arrows": arrows},
        (
            ("How many boxes are there?", f"{len(places)}."),
            ("How many arrows are there?", f"{len(arrows)}."),
            (f"What comes directly after {asked}?", f"{' and '.join(after)}."),
            (f"How many arrows does it take from {source} to a box without a way out?", f"{depth - 1}."),
            ("List every arrow.", "\n".join(f"{one} -> {two}" for one, two in arrows)),
        ),
        ("number of boxes", len(places), str(len(places))),
    )


def scene(rng: Random, width: int, height: int) -> Picture:
    """Coloured shapes that never touch: one on a tiny canvas, up to a few dozen on a large one."""
    ground = rng.choice(("#f6efe0", "#dfeaf2", "#e6efe0", "#f4e4e4", "#e8e4f0"))
    canvas = Canvas(width, height, THEMES[0], background=ground)
    cell = max(28.0, min(width, height) / rng.randint(1, 4), (width * height / 30) ** 0.5)
    columns, rows = max(1, int(width / cell)), max(1, int(height / cell))
    cell = min(width / columns, height / rows)
    spots = rng.sample(range(columns * rows), max(1, round(columns * rows * rng.uniform(0.5, 0.95))))
    shapes = [(rng.choice(tuple(_COLOURS)), rng.choice(_SHAPES)) for _ in spots]
    for spot, (colour, shape) in zip(spots, shapes, strict=True):
        radius = cell * rng.uniform(0.26, 0.4)
        slack = cell / 2 - radius
        x = (spot % columns + 0.5) * width / columns + rng.uniform(-slack, slack) * 0.9
        y = (spot // columns + 0.5) * height / rows + rng.uniform(-slack, slack) * 0.9
        _shape(canvas, shape, (x + radius * 0.06, y + radius * 0.12), radius, blend(ground, "#3b3440", 0.16))  # shadow
        _shape(canvas, shape, (x, y), radius, _COLOURS[colour])
    colour, shape = rng.choice(shapes)
    of_colour = sum(c == colour for c, _ in shapes)
    of_shape = sum(s == shape for _, s in shapes)
    alone = (("Which shape is it, and in which colour?", f"A {colour} {shape}."),) if len(shapes) == 1 else ()
    return Picture(
        canvas.finish(),
        {"kind": "scene", "shapes": shapes},
        (
            *alone,
            ("How many shapes are there?", f"{len(shapes)}."),
            (f"How many shapes are {colour}?", f"{of_colour}."),
            (f"How many {shape}s are there?", f"{of_shape}."),
            ("Name the colours that occur.", f"{', '.join(sorted({c for c, _ in shapes})).capitalize()}."),
        ),
        ("number of shapes", len(shapes), str(len(shapes))),
        colourful=True,
    )


def clock(rng: Random, width: int, height: int) -> Picture:
    """A clock face that shows a multiple of five minutes."""
    theme = rng.choice(THEMES)
    hour, minute = rng.randint(1, 12), 5 * rng.randrange(12)
    canvas = Canvas(width, height, theme, background=theme.panel)
    radius = min(width, height) * 0.44
    x, y = centre = (width / 2, height / 2)
    canvas.dot(centre, radius, theme.paper, outline=theme.ink, stroke=max(1.0, radius * 0.05))
    for tick in range(60 if radius > 60 else 12):
        turn = tick / (60 if radius > 60 else 12)
        major = tick % 5 == 0 or radius <= 60
        inner = _polar(centre, radius * (0.84 if major else 0.9), turn)
        canvas.line(
            [inner, _polar(centre, radius * 0.93, turn)],
            theme.ink if major else theme.muted,
            radius * (0.03 if major else 0.012),
        )
    if radius > 40:
        for numeral in range(1, 13):
            canvas.text(
                _polar(centre, radius * 0.71, numeral / 12), str(numeral), radius * 0.17, theme.ink, anchor="mm"
            )
    tint = rng.choice(theme.accents)
    canvas.line([centre, _polar(centre, radius * 0.38, (hour + minute / 60) / 12)], theme.ink, radius * 0.085)
    canvas.line([centre, _polar(centre, radius * 0.58, minute / 60)], tint, radius * 0.055)
    canvas.dot((x, y), radius * 0.075, tint)
    past = hour % 12 * 60 + minute
    later = (past + 45) % 720
    return Picture(
        canvas.finish(),
        {"kind": "clock", "hour": hour, "minute": minute},
        (
            ("What time does the clock show?", f"{hour}:{minute:02d}."),
            ("What will it show in 45 minutes?", f"{later // 60 or 12}:{later % 60:02d}."),
            ("Which number is the minute hand on?", f"The {minute // 5 or 12}."),
        ),
        ("number of minutes past twelve", past, str(past)),
    )


def _arrows(rng: Random, one: list[str], two: list[str]) -> set[tuple[str, str]]:
    """Arrows between two ranks such that every box of the first leads on and every box of the second is reached."""
    straight = {(one[i * len(one) // n], two[i * len(two) // n]) for n in (max(len(one), len(two)),) for i in range(n)}
    return straight | ({(rng.choice(one), rng.choice(two))} if rng.random() < 0.4 else set())


def _arrow(canvas: Canvas, start: Point, end: Point, em: float) -> None:
    (x0, y0), (x1, y1) = start, end
    length = max(1.0, ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5)
    dx, dy, head = (x1 - x0) / length, (y1 - y0) / length, em * 0.6
    neck = (x1 - dx * head, y1 - dy * head)
    canvas.line([start, neck], canvas.theme.muted, max(1.0, em / 9))
    wing = (-dy * head * 0.5, dx * head * 0.5)
    tips = [end, (neck[0] + wing[0], neck[1] + wing[1]), (neck[0] - wing[0], neck[1] - wing[1])]
    canvas.polygon(tips, canvas.theme.muted)


def _shape(canvas: Canvas, shape: str, centre: Point, radius: float, fill: str) -> None:
    x, y = centre
    if shape == "circle":
        canvas.dot(centre, radius, fill)
    elif shape == "square":
        side = radius * 0.88
        canvas.rect((x - side, y - side, x + side, y + side), fill, radius=radius * 0.12)
    elif shape == "triangle":
        canvas.polygon([_polar(centre, radius, i / 3) for i in range(3)], fill)
    else:
        canvas.polygon([_polar(centre, radius * (0.45 if i % 2 else 1), i / 10) for i in range(10)], fill)


def _polar(centre: Point, radius: float, turn: float) -> Point:
    """The point `radius` from `centre`, `turn` turns clockwise from twelve o'clock."""
    return centre[0] + radius * sin(turn * tau), centre[1] - radius * cos(turn * tau)
