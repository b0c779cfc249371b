"""What a layout's plan uses beside the placement: codecs, depth, the reducer, local steps."""
