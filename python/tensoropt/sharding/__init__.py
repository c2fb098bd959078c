"""How operators may be split: named dims, layouts, configurations, and what must be decided."""
