"""The smallest contract that is valid."""

MINIMAL = """[model]
name = "clicks"
task = "perennial.tasks.tabular:TabularClassification"
[data]
uri = "data"
label = "clicked"
ids = ["click_id"]
"""
