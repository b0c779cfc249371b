"""Views of the side bar."""
