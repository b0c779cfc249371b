"""launchers"""
