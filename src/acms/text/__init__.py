"""Text: tokens and stems, sentences, dates, entities, details, extracts; the index record of an entry."""
