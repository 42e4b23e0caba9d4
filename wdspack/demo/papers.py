"""Tables and till receipts: `draw(rng, width, height) -> Picture`, every answer computed from the numbers drawn."""

from random import Random

from wdspack.demo.canvas import THEMES, Canvas, Picture, Theme, blend

_TABLES = (
    ("Deliveries", "Depot", "Harbour, Mill Lane, Quarry, Station, Orchard, Foundry, Airfield, Chapel Hill"),
    ("Points", "Team", "Otters, Falcons, Badgers, Herons, Lynxes, Magpies, Foxes, Hares"),
    ("Trees planted", "Ward", "Elmwood, Lakeside, Northgate, Sunnyhill, Old Port, Kingsway, Meadows, Ashford"),
    ("Hours", "Project", "Atlas, Beacon, Comet, Delta, Ember, Fjord, Garnet, Harvest"),
)
_COLUMNS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SHOPS = (  # name, street, articles with their prices in cents
    (
        "CORNER BAKERY",
        "12 Mill Lane",
        "Rye loaf 420, Croissant 260, Bagel 195, Espresso 240, Scone 230, Cheesecake 480, Pretzel 175",
    ),
    (
        "GREEN GROCER",
        "3 Market Square",
        "Tomatoes 310, Basil 180, Lemons 225, Potatoes 345, Leeks 270, Plums 390, Spinach 255",
    ),
    (
        "PAPER & PEN",
        "88 Station Road",
        "Notebook 590, Black ink 745, Pencils 320, Ruler 210, Envelopes 415, Eraser 130, Folder 280",
    ),
    (
        "THE TOOL SHED",
        "41 Quarry Way",
        "Hammer 1890, Sandpaper 460, Wood glue 675, Screws 395, Brush 540, Tape 310, Hinge 225",
    ),
)
_DESKS = ("#8d6e57", "#3f5765", "#6b7f6a", "#b08a6a", "#4b4453", "#a9b7b0")
_RECEIPT = Theme("#fdfcf8", "#f4f1e8", "#2b2b2b", "#85817a", "#cfcabf", ("#2b2b2b",))
_TAX_PERCENT = 8


def table(rng: Random, width: int, height: int) -> Picture:
    """Named rows of whole numbers under weekdays, without totals: those are for the reader to work out."""
    theme = rng.choice(THEMES)
    title, corner, pool = rng.choice(_TABLES)
    canvas = Canvas(width, height, theme)
    em = canvas.em
    names = rng.sample(pool.split(", "), max(2, min(8, int((height - em * 5) / (em * 2.1)))))
    columns = list(_COLUMNS[: max(2, min(7, int(width / em / 3.4) - 2))])
    cells = [[rng.randint(1, 60) for _ in columns] for _ in names]
    totals = [sum(row) for row in cells]
    while totals.count(max(totals)) > 1:  # one row must lead
        cells[0][0] += 1
        totals = [sum(row) for row in cells]
    pad = em * 1.1
    canvas.text((pad, pad + em * 0.95), title, em * 1.3, theme.ink, bold=True, width=width - 2 * pad)
    top, left, right = pad + em * 2.1, pad, width - pad
    step = min((height - pad - top) / (len(names) + 1), em * 3)
    first = left + (right - left) * 0.3
    edges = [first + (right - first) * (i + 1) / len(columns) - em * 0.7 for i in range(len(columns))]
    tint = rng.choice(theme.accents)
    canvas.rect((left, top, right, top + step), tint, radius=em * 0.4)
    for i, row in enumerate([columns, *([str(cell) for cell in row] for row in cells)]):
        y = top + step * (i + 0.5)
        if i and i % 2 == 0:
            canvas.rect((left, y - step / 2, right, y + step / 2), blend(theme.paper, tint, 0.1), radius=em * 0.3)
        ink = theme.ink if i else theme.paper
        name = names[i - 1] if i else corner
        canvas.text((left + em * 0.7, y), name, em * 0.88, ink, anchor="lm", bold=not i, width=first - left - em * 0.7)
        for x, cell in zip(edges, row, strict=True):
            canvas.text((x, y), cell, em * 0.88, ink, anchor="rm", bold=not i)
    r, c = rng.randrange(len(names)), rng.randrange(len(columns))
    column = [row[c] for row in cells]
    best = totals.index(max(totals))
    lines = [
        " | ".join([corner, *columns]),
        *(" | ".join([n, *map(str, row)]) for n, row in zip(names, cells, strict=True)),
    ]
    return Picture(
        canvas.finish(),
        {"kind": "table", "title": title, "columns": columns, "names": names, "cells": cells},
        (
            (f"What is the figure for {names[r]} on {columns[c]}?", f"{cells[r][c]}."),
            (f"What does the column {columns[c]} add up to?", f"{' + '.join(map(str, column))} = {sum(column)}."),
            (f"What does the row {names[r]} add up to?", f"{' + '.join(map(str, cells[r]))} = {totals[r]}."),
            (f"Which {corner.lower()} has the greatest total?", f"{names[best]}, with {totals[best]}."),
            ("Write the table out as text.", "\n".join(lines)),
        ),
        ("sum of all cells", sum(totals), str(sum(totals))),
    )


def receipt(rng: Random, width: int, height: int) -> Picture:
    """A till receipt lying on a desk: items, subtotal, tax, total, money given and change, in cents in the facts."""
    shop, street, articles = rng.choice(_SHOPS)
    goods = [(name, int(cents)) for name, _, cents in (entry.rpartition(" ") for entry in articles.split(", "))]
    theme, desk = _RECEIPT, rng.choice(_DESKS)
    canvas = Canvas(width, height, theme, background=desk)
    em = min(max(8.5, width / 23), height / 25, 64.0)
    room = int((height - em * 19) / (em * 1.5))
    picked = rng.sample(goods, max(1, min(len(goods), room)))
    items = [(name, rng.choice((1, 1, 1, 2, 3)), price) for name, price in picked]
    subtotal = sum(quantity * price for _, quantity, price in items)
    tax = (subtotal * _TAX_PERCENT + 50) // 100
    total = subtotal + tax
    paid = -(-total // 1000) * 1000
    side = min(width * 0.94, em * 26)
    left, right = (width - side) / 2, (width + side) / 2
    top, bottom = em * 0.8, min(height - em * 0.8, em * (20.2 + 1.5 * len(items)))
    top += (height - em * 0.8 - bottom) / 2
    bottom += (height - em * 0.8 - bottom) / 2
    _paper(canvas, (left, top, right, bottom), em, desk)
    a, b, middle, y = left + em * 1.6, right - em * 1.6, width / 2, top + em * 2.4
    canvas.text((middle, y), shop, em * 1.5, theme.ink, anchor="ms", bold=True, width=b - a)
    canvas.text((middle, y + em * 1.4), street, em * 0.85, theme.muted, anchor="ms")
    y = _dashes(canvas, a, b, y + em * 2.4, em)
    for name, quantity, price in items:
        canvas.text((a, y), f"{quantity} x {name}", em, theme.ink)
        canvas.text((b, y), _money(quantity * price), em, theme.ink, anchor="rs")
        y += em * 1.5
    y = _dashes(canvas, a, b, y - em * 0.6, em)
    for label, amount in (("Subtotal", subtotal), (f"Tax {_TAX_PERCENT}%", tax)):
        canvas.text((a, y), label, em * 0.9, theme.muted)
        canvas.text((b, y), _money(amount), em * 0.9, theme.muted, anchor="rs")
        y += em * 1.4
    canvas.text((a, y + em * 0.3), "TOTAL", em * 1.35, theme.ink, bold=True)
    canvas.text((b, y + em * 0.3), _money(total), em * 1.35, theme.ink, anchor="rs", bold=True)
    y += em * 2
    for label, amount in (("Cash", paid), ("Change", paid - total)):
        canvas.text((a, y), label, em * 0.9, theme.muted)
        canvas.text((b, y), _money(amount), em * 0.9, theme.muted, anchor="rs")
        y += em * 1.4
    _barcode(canvas, rng, (a + em, y, b - em, bottom - em * 1.4))
    count = sum(quantity for _, quantity, _ in items)
    name, quantity, price = rng.choice(items)
    dearest = max(items, key=lambda item: item[1] * item[2])
    listing = "\n".join(f"{quantity} x {name}: {_money(quantity * price)}" for name, quantity, price in items)
    return Picture(
        canvas.finish(),
        {"kind": "receipt", "shop": shop, "items": items, "tax": tax, "total": total, "paid": paid},
        (
            ("What is the total?", f"{_money(total)}."),
            ("How much change was given?", f"{_money(paid)} - {_money(total)} = {_money(paid - total)}."),
            ("How many articles were bought?", f"{count}."),
            (f"What does one {name} cost?", f"{_money(price)}."),
            ("What is the highest amount on a single line of items?", f"{_money(dearest[1] * dearest[2])}."),
            ("Copy the items with their amounts.", f"{shop.title()}\n{listing}\nTotal: {_money(total)}"),
        ),
        ("total", total, _money(total)),
    )


def _money(cents: int) -> str:
    return f"${cents // 100}.{cents % 100:02d}"


def _paper(canvas: Canvas, box: tuple[float, float, float, float], em: float, desk: str) -> None:
    """A strip of paper with a torn lower edge and a soft shadow."""
    left, top, right, bottom = box
    for i in range(6, 0, -1):
        grow = em * 0.09 * i
        shade = blend(desk, "#000000", 0.05 * (7 - i))
        canvas.rect(
            (left - grow + em * 0.1, top - grow + em * 0.2, right + grow + em * 0.1, bottom + grow), shade, radius=grow
        )
    teeth = max(6, int((right - left) / em))
    step = (right - left) / teeth
    zigzag = [(right - step * i / 2, bottom - (em * 0.45 if i % 2 else 0)) for i in range(2 * teeth + 1)]
    canvas.polygon([(left, top), (right, top), *zigzag], canvas.theme.paper)


def _dashes(canvas: Canvas, left: float, right: float, y: float, em: float) -> float:
    """A dashed rule at `y`; returns the baseline of the line of text that follows."""
    count = int((right - left) / em)
    step = (right - left) / (count - 0.45)
    for i in range(count):
        canvas.line([(left + i * step, y), (left + (i + 0.55) * step, y)], canvas.theme.line, max(1.0, em / 12))
    return y + em * 1.6


def _barcode(canvas: Canvas, rng: Random, box: tuple[float, float, float, float]) -> None:
    x, top, right, bottom = box
    unit = (right - x) / 96
    while x < right - 4 * unit and bottom > top:
        wide = rng.choice((1, 1, 2, 3)) * unit
        canvas.rect((x, top, x + wide, bottom), canvas.theme.ink)
        x += wide + rng.choice((1, 1, 2)) * unit
