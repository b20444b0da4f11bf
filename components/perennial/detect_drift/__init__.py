"""Has the stream left the champion's reference, or has the champion lost performance?"""
