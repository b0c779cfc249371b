"""The Export page: `model` is its state, `view` what is seen."""
