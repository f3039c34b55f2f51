"""What the generator's products are called: one name for each number, always the same."""

from typing import Final

LOOKS: Final = (
    "Walnut", "Linen", "Copper", "Slate", "Amber", "Cobalt", "Ivory", "Cedar", "Graphite", "Olive",
    "Saffron", "Marble", "Indigo", "Birch", "Coral", "Pewter", "Sage", "Onyx", "Maple", "Ruby",
    "Sand", "Teal", "Clay", "Frost", "Moss",
)  # fmt: skip
THINGS: Final = (
    "Desk Lamp", "Kettle", "Backpack", "Notebook", "Teapot", "Headphones", "Armchair", "Blanket",
    "Bicycle Bell", "Water Bottle", "Wall Clock", "Picture Frame", "Coffee Grinder", "Cushion",
    "Garden Shears", "Wool Scarf", "Fountain Pen", "Bread Knife", "Plant Pot", "Travel Mug",
    "Bookshelf", "Rain Jacket", "Chess Set", "Camp Stove", "Umbrella", "Piano Stool", "Door Mat",
)  # fmt: skip


def name_of(number: int) -> str:
    """The two lists have no length in common, so that all pairs come before one comes again."""
    again, _ = divmod(number, len(LOOKS) * len(THINGS))
    name = f"{LOOKS[number % len(LOOKS)]} {THINGS[number % len(THINGS)]}"
    return f"{name} {again + 1}" if again else name


def product_id(number: int) -> str:
    return f"p{number:04}"
