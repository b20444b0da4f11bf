"""Factors between two units of one quantity."""

POWER = "a power of ten"
# Larger unit / smaller unit; glucose and cholesterol in mg/dl and mmol/l, creatinine in µmol/l.
FACTORS = {
    POWER: (10.0, 100.0, 1000.0, 1e4, 1e6, 1e9),
    "minutes, hours, days or weeks": (60.0, 3600.0, 86_400.0, 24.0, 1440.0, 7.0),
    "months and years, inches and feet, or dozens": (12.0,),
    "kilograms and pounds, or ounces and grams": (2.20462, 28.3495, 16.0),
    "metres, feet, inches, yards or centimetres": (3.28084, 39.3701, 2.54, 1.09361, 30.48),
    "square metres and feet, or hectares and acres": (10.76391, 2.471054),
    "kilometres and miles, or knots": (1.609344, 1.852, 1.150779),
    "litres and gallons": (3.785412, 4.54609),
    "joules and calories, or kilowatt-hours": (4.184, 3.6),
    "bar, psi, kilopascal or millimetres of mercury": (14.5038, 6.89476, 7.50062),
    "mg/dl and mmol/l": (18.016, 38.67, 88.57, 88.42),
    "radians and degrees": (57.29578,),
}
