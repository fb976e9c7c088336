"""One HTML page of a corpus: self-contained, readable on a phone, without requests to anywhere."""
