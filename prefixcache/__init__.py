"""Which prefixes of which prompts are already computed: the radix tree of an engine, and the gateway's view of many."""
