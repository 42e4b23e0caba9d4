"""Bar, line and ring charts: `draw(rng, width, height) -> Picture`, every answer computed from the numbers drawn."""

from math import ceil
from random import Random

from wdspack.demo.canvas import THEMES, Canvas, Picture, blend

_BARS = (
    ("Books lent", "loans a day", "Poetry History Travel Cooking Science Comics Crime Music Gardening"),
    ("Harvest", "crates", "Apples Pears Plums Cherries Quinces Figs Grapes Melons Peaches"),
    ("Ferry passengers", "people", "Harbour Lagoon Castle Lido Market Bridge Quarry Island Mole"),
    ("Visitors", "people an hour", "Gallery Garden Tower Aquarium Museum Theatre Zoo Library Palace"),
    ("Parcels", "a day", "North South East West Centre Airport Docks Campus Hills"),
    ("Energy used", "kWh", "Heating Lights Oven Fridge Laundry Car Pump Office Freezer"),
)
_LINES = (
    ("Rainfall", "mm", ("Coast", "Valley", "Summit")),
    ("Bikes rented", "a day", ("Station", "Riverside", "Old Town")),
    ("Nights booked", "rooms", ("Seaview", "Alpina", "Central")),
    ("Subscribers", "thousand", ("Basic", "Plus", "Family")),
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SHARES = (
    ("How people commute", "Bus Bicycle Train Car Walking Tram"),
    ("Where the budget goes", "Rent Food Travel Savings Leisure Insurance"),
    ("Land use", "Forest Meadow Farmland Housing Water Roads"),
    ("Favourite drinks", "Coffee Tea Water Juice Cocoa Cider"),
)


def bar_chart(rng: Random, width: int, height: int) -> Picture:
    """Two to nine bars, upright or lying, each with its value."""
    theme = rng.choice(THEMES)
    title, unit, pool = rng.choice(_BARS)
    room = max(2, min(9, int(max(width, height) / 60)))
    names = rng.sample(pool.split(), rng.randint(max(2, min(4, room)), room))
    values = rng.sample(range(12, 100), len(names))  # distinct, so that there is one highest
    canvas = Canvas(width, height, theme)
    em, tint = canvas.em, rng.choice(theme.accents)
    left, top, right, bottom = _heading(canvas, title, unit)
    lying = height > width or (width < 1.8 * height and rng.random() < 0.3)
    ceiling = 20 * ceil(max(values) / 20)
    if lying:
        left += max(canvas.extent(name, em * 0.8) for name in names) + em * 0.7
        right -= em * 1.6
        step = (bottom - top) / len(names)
        for mark in range(0, ceiling + 1, 20):
            x = left + (right - left) * mark / ceiling
            canvas.line([(x, top), (x, bottom)], theme.line)
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            y, x = top + step * (i + 0.5), left + (right - left) * value / ceiling
            canvas.rect((left, y - step * 0.34, x, y + step * 0.34), tint, radius=min(em * 0.35, step * 0.2))
            canvas.text((left - em * 0.5, y), name, em * 0.8, theme.muted, anchor="rm")
            canvas.text((x + em * 0.35, y), str(value), em * 0.8, theme.ink, anchor="lm", bold=True)
    else:
        bottom -= em * 1.3
        _ruled(canvas, (left, top, right, bottom), ceiling, 20)
        left += em * 2
        step = (right - left) / len(names)
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            x, y = left + step * (i + 0.5), bottom - (bottom - top) * value / ceiling
            canvas.rect((x - step * 0.32, y, x + step * 0.32, bottom), tint, radius=min(em * 0.35, step * 0.16))
            canvas.text((x, y - em * 0.3), str(value), em * 0.8, theme.ink, anchor="ms", bold=True, width=step)
            canvas.text((x, bottom + em * 1.15), name, em * 0.8, theme.muted, anchor="ms", width=step * 0.92)
    ranked = sorted(zip(values, names, strict=True), reverse=True)
    (most, first), (least, last) = ranked[0], ranked[-1]
    asked = rng.choice(names)
    bound = rng.randrange(30, 80, 10)
    over = sum(value > bound for value in values)
    listing = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
    return Picture(
        canvas.finish(),
        {"kind": "bar", "title": title, "unit": unit, "names": names, "values": values},
        (
            ("Which bar is the highest?", f"{first}, with {most} {unit}."),
            ("Which bar is the lowest?", f"{last}, with {least} {unit}."),
            (f"What is the value for {asked}?", f"{values[names.index(asked)]} {unit}."),
            (f"How much more does {first} have than {last}?", f"{most} - {least} = {most - least} {unit}."),
            ("What do all bars add up to?", f"{' + '.join(map(str, values))} = {sum(values)} {unit}."),
            (f"How many bars are above {bound}?", f"{over} of the {len(values)} bars."),
            ("Describe this chart.", f'A bar chart titled "{title}" in {unit}: {listing}. {first} leads.'),
        ),
        ("sum of all bars", sum(values), str(sum(values))),
    )


def line_chart(rng: Random, width: int, height: int) -> Picture:
    """Two or three lines over consecutive months, their names at their right ends."""
    theme = rng.choice(THEMES)
    title, unit, pool = rng.choice(_LINES)
    names = rng.sample(pool, 2 if width < 500 else 3)
    count = max(4, min(12, width // 55))
    start = rng.randint(0, 12 - count)
    months = list(_MONTHS[start : start + count])
    series = [_walk(rng, count) for _ in names]
    while series[0][-1] == series[1][-1]:  # one of the two must end higher
        series[1] = _walk(rng, count)
    canvas = Canvas(width, height, theme)
    em = canvas.em
    left, top, right, bottom = _heading(canvas, title, unit)
    bottom -= em * 1.3
    ceiling = 20 * ceil(max(map(max, series)) / 20)
    right -= max(canvas.extent(name, em * 0.8) for name in names) + em * 0.9
    _ruled(canvas, (left, top, right, bottom), ceiling, 20)
    left += em * 2.4
    across = [left + (right - left) * i / (count - 1) for i in range(count)]
    every = ceil(canvas.extent("May ", em * 0.85) / (across[1] - across[0]))
    for i in range(0, count, every):
        canvas.text((across[i], bottom + em * 1.15), months[i], em * 0.8, theme.muted, anchor="ms")
    tints = rng.sample(theme.accents, len(names))
    lines = [[(x, bottom - (bottom - top) * v / ceiling) for x, v in zip(across, line, strict=True)] for line in series]
    canvas.polygon([(left, bottom), *lines[0], (right, bottom)], blend(theme.paper, tints[0], 0.12))
    for tint, points in zip(tints, lines, strict=True):
        canvas.line(points, tint, em * 0.16)
        for point in points:
            canvas.dot(point, em * 0.24, theme.paper, outline=tint, stroke=em * 0.12)
    for tint, line, points in zip(tints, series, lines, strict=True):
        x, y = points[line.index(max(line))]
        canvas.text((x, y - em * 0.5), str(max(line)), em * 0.72, tint, anchor="ms", bold=True)
    lowest = bottom + em
    ends = sorted(zip((points[-1][1] for points in lines), names, tints, strict=True), reverse=True)
    for y, name, tint in ends:  # from the bottom up, pushed apart where they would touch
        lowest = min(y, lowest - em)
        canvas.text((right + em * 0.6, lowest), name, em * 0.8, tint, anchor="lm", bold=True)
    one, two = names[0], names[1]
    peaks = [months[line.index(max(line))] for line in series]
    ahead = sum(a > b for a, b in zip(series[0], series[1], strict=True))
    winner = one if series[0][-1] > series[1][-1] else two
    return Picture(
        canvas.finish(),
        {"kind": "line", "title": title, "unit": unit, "months": months, "names": names, "series": series},
        (
            (f"In which month does {one} peak?", f"In {peaks[0]}."),
            (f"In which month does {two} peak?", f"In {peaks[1]}."),
            (f"Which ends higher, {one} or {two}?", f"{winner}."),
            (f"In how many months is {one} above {two}?", f"In {ahead} of {count} months."),
            ("How many lines are there?", f"{len(names)}: {', '.join(names)}."),
            ("Which months does the chart cover?", f"{months[0]} to {months[-1]}, {count} months."),
        ),
        ("peak", max(map(max, series)), str(max(map(max, series)))),
    )


def ring_chart(rng: Random, width: int, height: int) -> Picture:
    """Three to six shares of 100 %, as a ring with a legend beside or below it."""
    theme = rng.choice(THEMES)
    title, pool = rng.choice(_SHARES)
    names = rng.sample(pool.split(), rng.randint(3, 5))
    shares = _shares(rng, len(names))
    canvas = Canvas(width, height, theme)
    em = canvas.em
    left, top, right, bottom = _heading(canvas, title, "")
    beside = right - left > 1.15 * (bottom - top)
    row = em * 1.5
    if beside:
        radius = min((bottom - top) / 2, (right - left) * 0.26)
        centre = (left + radius + em * 0.5, (top + bottom) / 2)
        corner = (left + radius * 2 + em * 2, (top + bottom - row * len(names)) / 2)
    else:
        radius = min((bottom - top - row * len(names) - em) / 2, (right - left) / 2)
        centre = ((left + right) / 2, top + radius)
        corner = (left + (right - left) * 0.14, bottom - row * len(names))
    end = min(right, corner[0] + em * 16) if beside else right - (right - left) * 0.14
    turn = 0.0
    for i, (name, share) in enumerate(zip(names, shares, strict=True)):
        tint = theme.accents[i]
        canvas.wedge(centre, radius, turn, turn + share / 100, tint)
        turn += share / 100
        y = corner[1] + row * (i + 0.5)
        canvas.rect((corner[0], y - em * 0.32, corner[0] + em * 0.64, y + em * 0.32), tint, radius=em * 0.2)
        canvas.text((corner[0] + em, y), name, em * 0.88, theme.ink, anchor="lm", width=(end - corner[0]) * 0.62)
        canvas.text((end, y), f"{share}%", em * 0.88, theme.ink, anchor="rm", bold=True)
    canvas.dot(centre, radius * 0.58, theme.paper)
    ranked = sorted(zip(shares, names, strict=True), reverse=True)
    (most, first), (least, last) = ranked[0], ranked[-1]
    a, b = rng.sample(range(len(names)), 2)
    listing = ", ".join(f"{name} {share}%" for share, name in ranked)
    return Picture(
        canvas.finish(),
        {"kind": "ring", "title": title, "names": names, "shares": shares},
        (
            ("Which share is the largest?", f"{first}, at {most}%."),
            ("Which share is the smallest?", f"{last}, at {least}%."),
            (
                f"What share do {names[a]} and {names[b]} have together?",
                f"{shares[a]}% + {shares[b]}% = {shares[a] + shares[b]}%.",
            ),
            (f"Does {first} make up more than half?", "Yes." if most > 50 else "No."),
            ("List the shares from largest to smallest.", f"{listing}."),
        ),
        ("single share", most, f"{most}%"),
    )


def _heading(canvas: Canvas, title: str, unit: str) -> tuple[float, float, float, float]:
    """Writes the title and returns the box (left, top, right, bottom) that is left for the chart."""
    em, theme, pad = canvas.em, canvas.theme, canvas.em * 1.1
    canvas.text((pad, pad + em * 0.95), title, em * 1.3, theme.ink, bold=True, width=canvas.width - 2 * pad)
    if unit:
        canvas.text((pad, pad + em * 2.05), unit, em * 0.8, theme.muted, width=canvas.width - 2 * pad)
    return pad, pad + em * (3.3 if unit else 2), canvas.width - pad, canvas.height - pad


def _ruled(canvas: Canvas, box: tuple[float, float, float, float], ceiling: int, step: int) -> None:
    left, top, right, bottom = box
    em, theme = canvas.em, canvas.theme
    for mark in range(0, ceiling + 1, step):
        y = bottom - (bottom - top) * mark / ceiling
        canvas.line([(left + em * 1.7, y), (right, y)], theme.line if mark else theme.muted, max(1.0, em / 16))
        canvas.text((left + em * 1.3, y), str(mark), em * 0.75, theme.muted, anchor="rm")


def _walk(rng: Random, count: int) -> list[int]:
    """`count` values from 10 to 96 that wander, with a single highest one."""
    level, line = rng.randint(25, 75), list[int]()
    for _ in range(count):
        level = min(94, max(10, level + rng.randint(-16, 16)))
        line.append(level)
    line[rng.randrange(count)] = max(line) + rng.randint(1, 2)
    return line


def _shares(rng: Random, count: int) -> list[int]:
    """`count` distinct whole percentages, at least 4 each, that sum to 100."""
    while True:
        cuts = sorted(rng.sample(range(1, 100), count - 1))
        shares = [b - a for a, b in zip([0, *cuts], [*cuts, 100], strict=True)]
        if min(shares) >= 4 and len(set(shares)) == count:
            return shares
