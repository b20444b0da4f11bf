"""Which checkpoint goes to the gate?"""
