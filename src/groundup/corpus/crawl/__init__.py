"""From a list of URLs to documents: polite, bounded in every respect, and resumable."""
