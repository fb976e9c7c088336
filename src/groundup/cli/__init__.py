"""The command line: one module for each verb, imported only when its verb is typed."""
