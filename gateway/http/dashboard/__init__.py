"""The operator's dashboard: one page, its style and its script, which ask the API as any client does."""
