"""The verbs, one per file: each takes the whole configuration, ties the rooms together and says what it wrote."""
