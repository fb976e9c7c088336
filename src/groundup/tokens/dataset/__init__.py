"""Files of tokens, ours and other people's: reading, writing, checking, cutting, joining, fetching."""
