"""One file for each operator family or close group; ``sharding.rules`` dispatches to them."""
