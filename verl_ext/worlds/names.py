"""Words of which names are made: "Amber Harbor", "Tova Brandt", "Old Karsa".

A name is a pair of words, and a fixed fifth of all pairs belongs to validation.
"""

from collections.abc import Sequence

SPLITS = ("train", "val")

FIRST = (
    "Adela Bram Cora Dario Edda Fenno Greta Halim Ilse Joren Katya Lorin Mirel Nando Orla Pavel Quim Runa "
    "Selma Tova Ugo Vera Wanda Yaro Zelda Amos Bruna Clio Dagny Emil Frida Goran Hedda Ivo Jutta Kolja"
).split()
LAST = (
    "Abbott Brandt Calder Dorsey Eklund Farrow Gallo Hobart Ibsen Jansen Keller Lorca Moreno Nolan Oakes Pavic "
    "Quist Rossi Sabel Tanaka Ulmer Varga Weller Yates Zorn Ames Bellini Cramer Duval Ferro Grieg Holt Kimura "
    "Lindt Marlow Novak"
).split()
ADJECTIVES = (
    "Amber Bitter Crimson Distant Empty Frozen Golden Hidden Iron Jagged Kindly Lonely Marble Narrow Paper Quiet "
    "Restless Silver Tender Velvet Wooden Scarlet Broken Gentle Hollow Misty Patient Stormy"
).split()
NOUNS = (
    "Anchor Bridge Castle Desert Engine Forest Garden Harbor Island Journey Kingdom Lantern Mirror Orchard Palace "
    "River Season Tower Valley Winter Bell Candle Feather Meadow Compass Shadow Thunder Window"
).split()
TOWNS = (
    "Arvik Belmora Corvo Dunmere Estal Farholm Gorin Haskel Irvane Jelsa Karsa Lumar Mostar Nerva Ostrel Pelham "
    "Quenby Ralto Selno Tarvis Umbra Velden Wexton Yarrow Zemst Almen Brask Cintra Dorva Elster Fosk Grado Hulme "
    "Istra Kelso Lodi"
).split()
PREFIXES = "North South Old New Upper Port".split()
HEADS = [*FIRST, *LAST, *ADJECTIVES, *PREFIXES]  # first words of names


def name_pairs(heads: Sequence[str], tails: Sequence[str], split: str) -> list[str]:
    """All two-word names of one split, in a fixed order: a fifth of the grid is validation's, the rest training's."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; allowed: {', '.join(SPLITS)}")
    pairs = ((i, j, f"{head} {tail}") for i, head in enumerate(heads) for j, tail in enumerate(tails))
    return [name for i, j, name in pairs if ((i + 2 * j) % 5 == 0) == (split == "val")]
