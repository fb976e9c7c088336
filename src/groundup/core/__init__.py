"""What every room stands on: configs, errors, files, manifests, progress. Imports no torch."""
