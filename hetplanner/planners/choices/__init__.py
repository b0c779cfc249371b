"""What a layout's plan uses beside the placement: codecs, the reducer, local steps."""
