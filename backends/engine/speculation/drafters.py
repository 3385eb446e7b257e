"""The drafters that an engine is started with."""

from backends.engine.speculation.drafter import Drafter
from backends.engine.speculation.ngram import NgramDrafter
from backends.wire import Speculation


def drafters_for(config: Speculation) -> list[Drafter]:
    """In the order in which they are to be asked."""
    if config.method == "off":
        return []
    drafter = NgramDrafter()
    drafter.warm_up()
    return [drafter]
