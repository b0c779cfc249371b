"""The Run page: start runs and watch them."""
