"""Judging: is a challenger better than the champion, and for whom?"""
