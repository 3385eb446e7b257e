"""Tool calls: how models are told of tools, how they write their calls, and what is made of that."""
