"""Train again now?"""
