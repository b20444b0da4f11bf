"""Datasets of the eleventh list: what data teams have every day, with gaps, skew and rare categories."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import sigmoid


def _gaps(rng, values, share):
    """The values as a list, a share of them missing."""
    return [
        None if gone else v for v, gone in zip(values, rng.random(len(values)) < share, strict=True)
    ]


def _columns(**columns):
    return numbered(pl.DataFrame(columns))


def subscribers():
    """Usage of a video service in the last 30 days, and whether the subscription ended in the next."""
    rng = seeded(11001)
    n = 6000
    tenure = np.clip(rng.exponential(14, n), 0.3, 90)
    plan = rng.choice(["basic", "standard", "premium", "student"], n, p=[0.35, 0.4, 0.2, 0.05])
    price = np.select(
        [plan == "basic", plan == "standard", plan == "premium"], [8.99, 13.99, 17.99], 5.99
    )
    engaged = rng.normal(0, 1, n) + 0.15 * np.log(tenure)
    minutes = np.exp(5.5 + 0.8 * engaged + rng.normal(0, 0.4, n)) * (rng.random(n) > 0.06)
    sessions = rng.poisson(np.clip(minutes / 55, 0, 300))
    idle = np.where(minutes > 0, rng.geometric(sigmoid(0.8 * engaged - 0.5)), 30).clip(0, 30)
    calls = rng.poisson(0.25 + 0.3 * (engaged < -1), n)
    country = rng.choice(["DE", "FR", "AT", "CH", "PL", "CZ", "LU", "LI"], n,
                         p=[0.42, 0.24, 0.1, 0.08, 0.09, 0.055, 0.013, 0.002])  # fmt: skip
    payment = rng.choice(["card", "paypal", "debit", "voucher"], n, p=[0.5, 0.28, 0.18, 0.04])
    z = -2.3 - 0.55 * engaged + 0.05 * idle + 0.45 * calls - 0.35 * np.log(tenure)
    z += 0.9 * (payment == "voucher") + 0.05 * (price - 12) + 0.3 * (country == "PL")
    return _columns(
        tenure_months=tenure.round(1),
        plan=plan,
        monthly_price=price,
        minutes_30d=_gaps(rng, minutes.round(0), 0.04),
        sessions_30d=sessions,
        days_since_last_play=idle,
        support_calls=calls,
        devices=rng.poisson(1.2 + 0.8 * (plan == "premium")) + 1,
        age=_gaps(rng, np.clip(rng.normal(38, 13, n), 16, 88).round(0), 0.12),
        country=country,
        payment=_gaps(rng, payment, 0.02),
        churned=(rng.random(n) < sigmoid(z)).astype(int),
    )


def personal_loans():
    """Three years of personal loans and whether each was charged off; dates and terms are texts."""
    rng = seeded(11003)
    n = 12000
    issued = np.sort(rng.integers(0, 1080, n))
    income = np.exp(rng.normal(10.9, 0.5, n))
    score = np.clip(rng.normal(700, 38, n) + 12 * (np.log(income) - 10.9), 560, 848)
    grade = np.clip(np.floor((790 - score + rng.normal(0, 18, n)) / 28), 0, 6).astype(int)
    long = rng.random(n) < 0.27
    amount = np.clip(np.exp(rng.normal(9.2, 0.6, n)), 1000, 40000).round(-2)
    rate = 6 + 3.1 * grade + 2 * long + rng.normal(0, 0.7, n)
    debt = np.clip(rng.gamma(3.2, 5.8, n), 0, 60)
    since = rng.gamma(4, 1400, n) + 900
    purpose = rng.choice(
        ["debt_consolidation", "credit_card", "home_improvement", "other", "medical", "wedding", "renewable_energy"],
        n, p=[0.55, 0.22, 0.08, 0.1, 0.03, 0.017, 0.003],
    )  # fmt: skip
    years = rng.choice(["< 1 year", "1 year", "2 years", "3 years", "5 years", "8 years", "10+ years"], n,
                       p=[0.09, 0.07, 0.1, 0.1, 0.14, 0.15, 0.35])  # fmt: skip
    home = rng.choice(["MORTGAGE", "RENT", "OWN", "OTHER"], n, p=[0.49, 0.4, 0.108, 0.002])
    z = -2.6 + 0.34 * grade + 0.45 * long + 0.022 * debt - 0.4 * (np.log(income) - 10.9)
    z += 0.3 * (home == "RENT") + 0.35 * (purpose == "medical") + 0.2 * (years == "< 1 year")
    z += 0.00025 * (issued - 540) - 0.00004 * since + 0.2 * (np.log(amount) - 9.2)
    start = datetime(2019, 1, 1, 9)
    when = [
        start + timedelta(days=int(d), minutes=int(m))
        for d, m in zip(issued, rng.integers(0, 540, n), strict=True)
    ]
    return _columns(
        issued_at=when,
        earliest_credit_line=[
            (t - timedelta(days=int(s))).strftime("%b-%Y") for t, s in zip(when, since, strict=True)
        ],
        loan_amount=amount,
        term=np.where(long, " 60 months", " 36 months"),
        interest_rate=[f"{r:.2f}%" for r in rate],
        grade=["ABCDEFG"[g] for g in grade],
        employment_length=_gaps(rng, years, 0.06),
        home_ownership=home,
        annual_income=income.round(0),
        debt_to_income=_gaps(rng, debt.round(2), 0.01),
        credit_score=score.round(0).astype(int),
        purpose=purpose,
        charged_off=(rng.random(n) < sigmoid(z)).astype(int),
    )


def flat_sales():
    """Prices of flats and houses of a town: areas, ages, quality grades, 22 quarters with few sales each."""
    rng = seeded(11005)
    n = 1600
    quarter = rng.choice(22, n, p=rng.dirichlet(np.full(22, 1.2)))
    level = rng.normal(0, 0.22, 22)
    area = np.exp(rng.normal(4.45, 0.38, n))
    built = np.clip(2020 - rng.gamma(2, 22, n), 1880, 2020).round(0)
    quality = np.clip(rng.normal(5.5 + 0.02 * (built - 1975), 1.1, n).round(0), 1, 10)
    plot = area * np.exp(rng.normal(0.9, 0.5, n))
    kind = rng.choice(["flat", "terraced", "detached"], n, p=[0.6, 0.25, 0.15])
    renovated = np.where(
        rng.random(n) < 0.35, np.minimum(2022, built + rng.gamma(2, 15, n)), built
    ).round(0)
    garage = rng.choice(["none", "carport", "attached", "detached"], n, p=[0.45, 0.1, 0.35, 0.1])
    log_price = (
        7.9 + level[quarter] + 0.85 * np.log(area) + 0.11 * (quality - 5.5) + 0.002 * (built - 1975)
    )
    log_price += (
        0.08 * (garage != "none") + 0.12 * (kind == "detached") + 0.002 * (renovated - built)
    )
    log_price += rng.normal(0, 0.11, n)
    kitchen = np.clip((quality + rng.normal(0, 1.2, n) - 3) // 2, 0, 3).astype(int)
    return _columns(
        quarter=[f"Q{q:02d}" for q in quarter],
        kind=kind,
        living_area=area.round(1),
        rooms=np.clip((area / 24 + rng.normal(0, 0.7, n)).round(0), 1, 12).astype(int),
        plot_area=[None if k == "flat" else p for k, p in zip(kind, plot.round(0), strict=True)],
        year_built=built.astype(int),
        year_renovated=renovated.astype(int),
        overall_quality=quality.astype(int),
        kitchen=[("Po", "Fa", "Gd", "Ex")[k] for k in kitchen],
        garage=garage,
        price=np.exp(log_price).round(-2),
    )


def motor_policies():
    """Motor third-party liability after the French portfolio: claims of a policy, and its share of a year."""
    rng = seeded(11007)
    n = 20000
    exposure = np.where(rng.random(n) < 0.35, 1.0, rng.beta(1.1, 1.4, n)).clip(0.003, 1).round(3)
    age = np.clip(rng.gamma(9, 5, n) + 3, 18, 95).round(0)
    car_age = np.clip(rng.gamma(1.6, 4.5, n), 0, 40).round(0)
    power = rng.choice(
        np.arange(4, 13), n, p=[0.17, 0.18, 0.22, 0.21, 0.08, 0.05, 0.04, 0.03, 0.02]
    )
    bonus = np.clip(
        50 + rng.exponential(14, n) * (rng.random(n) < 0.55) + 20 * (age < 25), 50, 180
    ).round(0)
    density = np.exp(rng.normal(6, 1.7, n)).clip(1, 27000).round(0)
    brand = rng.choice([f"B{k}" for k in (1, 2, 12, 3, 5, 6, 4, 10, 13, 11, 14)], n,
                       p=[0.24, 0.235, 0.24, 0.08, 0.05, 0.045, 0.035, 0.025, 0.02, 0.02, 0.01])  # fmt: skip
    region = rng.choice(["R24", "R82", "R93", "R11", "R53", "R52", "R91", "R72", "R31", "R54", "R94"], n,
                        p=[0.24, 0.13, 0.12, 0.11, 0.09, 0.08, 0.07, 0.06, 0.05, 0.045, 0.005])  # fmt: skip
    log_rate = (
        -1.7 + 0.02 * (bonus - 50) + 0.1 * (np.log(density) - 6) + 0.55 * np.exp(-((age - 18) / 6))
    )
    log_rate += -0.02 * car_age + 0.04 * (power - 6) + 0.25 * (brand == "B12") * (car_age < 2)
    rate = np.exp(log_rate) * rng.gamma(2, 0.5, n)
    return _columns(
        Exposure=exposure,
        VehPower=power,
        VehAge=car_age.astype(int),
        DrivAge=age.astype(int),
        BonusMalus=bonus.astype(int),
        VehBrand=brand,
        VehGas=rng.choice(["Regular", "Diesel"], n),
        Density=density.astype(int),
        Region=region,
        ClaimNb=rng.poisson(rate * exposure),
    )


def courier_trips():
    """Food deliveries of five months: places, weather, riders, and minutes from order to door."""
    rng = seeded(11009)
    n = 8000
    start = datetime(2024, 2, 1)
    day = np.sort(rng.integers(0, 150, n))
    hour = np.clip(
        np.where(rng.random(n) < 0.35, rng.normal(12.8, 1.2, n), rng.normal(19.6, 1.5, n)), 9, 23.5
    )
    when = [start + timedelta(days=int(d), hours=float(h)) for d, h in zip(day, hour, strict=True)]
    shop = rng.normal(0, 0.02, (60, 2)) + np.array([48.14, 11.57])
    place = rng.integers(0, 60, n)
    lat, lon = shop[place, 0], shop[place, 1]
    to_lat, to_lon = lat + rng.normal(0, 0.014, n), lon + rng.normal(0, 0.02, n)
    km = np.hypot((to_lat - lat) * 111, (to_lon - lon) * 74)
    weather = rng.choice(
        ["Sunny", "Cloudy", "Rain", "Storm", "Fog"], n, p=[0.4, 0.33, 0.19, 0.03, 0.05]
    )
    traffic = np.clip(
        np.floor(rng.normal(1, 0.6, n) + 0.9 * (np.abs(hour - 19) < 1.2)), 0, 3
    ).astype(int)
    vehicle = rng.choice(["bicycle", "scooter", "car"], n, p=[0.45, 0.45, 0.1])
    several = rng.choice([0, 1, 2, 3], n, p=[0.36, 0.5, 0.12, 0.02])
    rating = np.clip(rng.normal(4.6, 0.25, n), 2.5, 5)
    speed = np.select([vehicle == "bicycle", vehicle == "scooter"], [13, 21], 19) * (
        1 - 0.13 * traffic
    )
    minutes = 8 + rng.gamma(4, 1.6, n) + 60 * km / speed + 4.5 * several + 4 * (weather == "Rain")
    minutes += 9 * (weather == "Storm") + 5 * (4.6 - rating) + rng.normal(0, 2, n)
    minutes *= np.where(rng.random(n) < 0.015, rng.uniform(1.5, 2.5, n), 1)
    return _columns(
        ordered_at=when,
        restaurant_lat=lat.round(5),
        restaurant_lon=lon.round(5),
        drop_lat=to_lat.round(5),
        drop_lon=to_lon.round(5),
        weather=_gaps(rng, weather, 0.03),
        traffic=[("Low", "Medium", "High", "Jam")[t] for t in traffic],
        vehicle=vehicle,
        other_orders=several,
        rider_rating=_gaps(rng, rating.round(1), 0.05),
        rider_age=_gaps(rng, rng.integers(19, 41, n), 0.04),
        minutes=np.maximum(minutes, 6).round(0),
    )


def banner_slots():
    """Shown banners: site, campaign, device and hour as strings of many values, and the clicks on them."""
    rng = seeded(11011)
    n = 20000

    def zipf(k, a):
        p = 1 / np.arange(1, k + 1) ** a
        return p / p.sum()

    site, campaign = rng.choice(400, n, p=zipf(400, 1.1)), rng.choice(120, n, p=zipf(120, 0.9))
    device, hour = rng.choice(300, n, p=zipf(300, 1.3)), rng.integers(0, 24, n)
    place = rng.choice(["top", "side", "bottom", "pop"], n, p=[0.4, 0.35, 0.22, 0.03])
    size = rng.choice(["320x50", "300x250", "728x90", "160x600"], n, p=[0.55, 0.25, 0.15, 0.05])
    by_site, by_campaign, by_device = (
        rng.normal(0, s, k) for s, k in ((0.7, 400), (0.6, 120), (0.3, 300))
    )
    topic, taste = rng.normal(0, 1, (120, 3)), rng.normal(0, 1, (400, 3))
    z = -2.2 + by_site[site] + by_campaign[campaign] + by_device[device]
    z += (
        0.35 * (topic[campaign] * taste[site]).sum(1)
        + 0.4 * (place == "top")
        + 0.3 * np.sin(hour / 24 * 6.28)
    )
    return _columns(
        site_id=[f"{(s * 2654435761) % 2**32:08x}" for s in site],
        campaign_id=[f"c{c:04d}" for c in campaign],
        device_model=[f"{(d * 40503 + 77) % 2**24:06x}" for d in device],
        hour=hour,
        banner_pos=place,
        banner_size=size,
        click=(rng.random(n) < sigmoid(z)).astype(int),
    )


def bookings():
    """Bookings of a city and a resort hotel over two years, and whether they were cancelled."""
    rng = seeded(11013)
    n = 10000
    booked = np.sort(rng.integers(0, 730, n))
    lead = np.clip(rng.gamma(0.8, 110, n), 0, 600).round(0)
    hotel = rng.choice(["City Hotel", "Resort Hotel"], n, p=[0.66, 0.34])
    segment = rng.choice(["Online TA", "Offline TA/TO", "Groups", "Direct", "Corporate", "Complementary"], n,
                         p=[0.47, 0.2, 0.165, 0.11, 0.05, 0.005])  # fmt: skip
    deposit = np.where((segment == "Groups") & (rng.random(n) < 0.35), "Non Refund", "No Deposit")
    deposit = np.where(rng.random(n) < 0.002, "Refundable", deposit)
    country = rng.choice(["PRT", "GBR", "FRA", "ESP", "DEU", "ITA", "IRL", "BEL", "BRA", "USA", "NLD", "ISL"], n,
                         p=[0.41, 0.12, 0.1, 0.08, 0.07, 0.05, 0.04, 0.04, 0.035, 0.03, 0.02, 0.005])  # fmt: skip
    adults = rng.choice([1, 2, 3, 4], n, p=[0.2, 0.72, 0.07, 0.01])
    children = rng.choice([0, 1, 2], n, p=[0.92, 0.05, 0.03])
    before = rng.poisson(0.08, n)
    requests, parking = rng.poisson(0.6, n), (rng.random(n) < 0.07).astype(int)
    rate = np.exp(rng.normal(4.5, 0.35, n)) * (segment != "Complementary")
    agents = rng.choice(
        [9, 240, 14, 7, 250, 241, 28, 8, 1, 6],
        n,
        p=[0.4, 0.18, 0.1, 0.08, 0.07, 0.05, 0.04, 0.04, 0.03, 0.01],
    )
    z = (
        -1.0
        + 0.006 * lead
        + 2.8 * (deposit == "Non Refund")
        + 0.5 * (segment == "Online TA")
        - 0.8 * requests
    )
    z += (
        0.9 * (country == "PRT")
        + 0.9 * np.minimum(before, 2)
        - 3.5 * parking
        - 0.6 * (segment == "Direct")
    )
    z += 0.4 * (hotel == "City Hotel") + 0.005 * (rate - 90) + 0.15 * (adults - 2)
    booked_at = [
        datetime(2022, 1, 1, 8) + timedelta(days=int(d), minutes=int(m))
        for d, m in zip(booked, rng.integers(0, 900, n), strict=True)
    ]
    return _columns(
        booked_at=booked_at,
        arrival_date=[
            (t + timedelta(days=float(d))).strftime("%Y-%m-%d")
            for t, d in zip(booked_at, lead, strict=True)
        ],
        hotel=hotel,
        market_segment=segment,
        deposit_type=deposit,
        country=_gaps(rng, country, 0.01),
        agent=[
            a if s in ("Online TA", "Offline TA/TO", "Groups") else None
            for a, s in zip(agents, segment, strict=True)
        ],
        adults=adults,
        children=_gaps(rng, children, 0.002),
        weekend_nights=rng.poisson(0.9, n),
        week_nights=rng.poisson(2.4, n) + 1,
        previous_cancellations=before,
        special_requests=requests,
        parking_spaces=parking,
        adr=rate.round(2),
        is_canceled=(rng.random(n) < sigmoid(z)).astype(int),
    )


def _weather(rng, days, low=-2, high=20):
    """Daily mean temperatures: a season, and noise that lasts for some days."""
    season = (low + high) / 2 - (high - low) / 2 * np.cos((np.arange(days) - 20) / 365 * 2 * np.pi)
    noise = np.zeros(days)
    for i in range(1, days):
        noise[i] = 0.8 * noise[i - 1] + rng.normal(0, 1.9)
    return season + noise


def district_heat():
    """Hourly demand of a district heating network over 14 months, with the weather forecast and holidays."""
    rng = seeded(11015)
    days = 425
    daily = _weather(rng, days)
    hours = np.arange(days * 24)
    hour = hours % 24
    temperature = (
        np.repeat(daily, 24)
        - 3.5 * np.cos((hour - 3) / 24 * 2 * np.pi)
        + rng.normal(0, 0.5, len(hours))
    )
    start = datetime(2022, 11, 1)
    when = [start + timedelta(hours=int(h)) for h in hours]
    weekend = np.array([t.weekday() >= 5 for t in when])
    free = {(1, 1), (1, 6), (5, 1), (10, 3), (12, 25), (12, 26)}
    holiday = np.array([(t.month, t.day) in free for t in when])
    wind = np.clip(rng.gamma(2.5, 1.6, days).repeat(24) + rng.normal(0, 0.6, len(hours)), 0, 25)
    heating = np.clip(17 - temperature, 0, None) * (2.1 + 0.05 * wind)
    water = (
        9
        + 6 * np.exp(-(((hour - 7) / 2) ** 2)) * np.where(weekend | holiday, 0.5, 1)
        + 4 * np.exp(-(((hour - 20) / 2.5) ** 2))
    )
    demand = (heating * (0.9 + 0.15 * (np.abs(hour - 7) < 3)) + water) * np.exp(
        rng.normal(0, 0.05, len(hours))
    )
    before = np.concatenate([np.full(24, np.nan), demand[:-24]])
    week = np.concatenate([np.full(168, np.nan), demand[:-168]])
    frame = _columns(
        timestamp=when,
        temperature=_gaps(rng, temperature.round(1), 0.01),
        wind_speed=wind.round(1),
        is_holiday=holiday,
        demand_lag_24h=before.round(2),
        demand_lag_168h=week.round(2),
        demand_mw=demand.round(2),
    )
    return frame.slice(168)


def grocery_days():
    """Daily takings of 45 shops over ten months: promotions, holidays, closures, and what was sold before."""
    rng = seeded(11017)
    shops, days = 45, 300
    kinds = rng.choice(["city", "suburb", "highway"], shops, p=[0.4, 0.45, 0.15])
    level = np.exp(rng.normal(8.3, 0.45, shops) + 0.3 * (kinds == "highway"))
    far = np.exp(rng.normal(6.8, 1.1, shops)).round(-1)
    promo_effect = rng.normal(0.25, 0.07, shops)
    rows = []
    start = date(2023, 3, 1)
    calendar = [start + timedelta(days=d) for d in range(days)]
    free = {
        date(2023, 4, 7),
        date(2023, 4, 10),
        date(2023, 5, 1),
        date(2023, 10, 3),
        date(2023, 12, 25),
    }
    for s in range(shops):
        drift = np.cumsum(rng.normal(0, 0.012, days))
        past = []
        for d, today in enumerate(calendar):
            promo = int((d // 7) % 2 == s % 2 and today.weekday() < 5)
            week = (0.12, 0.0, -0.03, 0.0, 0.1, 0.2, -0.9)[today.weekday()] + 0.6 * (
                kinds[s] == "highway"
            ) * (today.weekday() == 6)
            closed = today in free and kinds[s] != "highway"
            log_sales = (
                np.log(level[s])
                + drift[d]
                + week
                + promo * promo_effect[s]
                + 0.2 * (today.month == 12)
            )
            sold = 0.0 if closed else float(np.exp(log_sales + rng.normal(0, 0.1)).round(2))
            if d >= 28 and not closed:
                rows.append((
                    datetime(today.year, today.month, today.day), f"shop_{s:02d}", str(kinds[s]),
                    None if s % 11 == 3 else float(far[s]), promo, today in free,
                    past[-7], float(np.mean(past[-28:])), sold,
                ))  # fmt: skip
            past.append(sold)
    names = [
        "date",
        "store",
        "store_type",
        "competition_distance",
        "promo",
        "holiday",
        "sales_lag_7",
        "sales_mean_28",
        "sales",
    ]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("date", "store"))


def compressor_windows():
    """Twenty-four hours of four sensors of 60 compressors, and whether one fails within two days after them."""
    rng = seeded(11019)
    rows = []
    for machine in range(60):
        t, age = 0, rng.uniform(0, 300)
        base = rng.normal(0, 1, 4) * (3, 0.3, 2, 0.05) + (72, 8.1, 41, 1.2)
        life = age + rng.gamma(6, 110)
        while t < 60:
            left = life - age
            wear = np.exp(-np.clip(left, 0, None) / 50) * rng.uniform(0.5, 1.2)
            hours = np.arange(24)
            load = (
                rng.uniform(0.5, 1)
                + 0.15 * np.sin((hours - 6) / 24 * 2 * np.pi)
                + rng.normal(0, 0.06, 24)
            )
            temperature = (
                base[0] + 14 * load + 9 * wear * (hours / 24 + 0.6) + rng.normal(0, 1.2, 24)
            )
            pressure = base[1] - 0.9 * wear * load + rng.normal(0, 0.12, 24)
            current = base[2] + 16 * load + rng.normal(0, 1.1, 24)
            vibration = (
                base[3]
                + 0.4 * load
                + wear * np.abs(rng.normal(0.5, 0.4, 24))
                + rng.gamma(1, 0.06, 24)
            )
            rows.append((
                datetime(2024, 1, 1) + timedelta(hours=float(machine) / 6) + timedelta(days=t), f"K{machine:02d}",
                *(v.round(2).tolist() for v in (temperature, pressure, current, vibration)),
                int(age), int(left < 48),
            ))  # fmt: skip
            if left < 24:
                age, life = 0.0, rng.gamma(6, 110)
            age += 24 * rng.uniform(0.5, 1)
            t += 1
    names = [
        "window_start",
        "machine",
        "temperature",
        "pressure",
        "current",
        "vibration",
        "hours_since_service",
        "fails_48h",
    ]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("window_start"))


def terminal_payments():
    """Card payments with anomaly scores of an older system and rolling counts; one in seventy is fraud."""
    rng = seeded(11037)
    n = 18000
    day = np.sort(rng.integers(0, 180, n))
    hour = np.clip(rng.normal(14, 4.5, n), 0, 23.9)
    amount = np.exp(rng.normal(3.4, 1, n))
    fraud = rng.random(n) < 0.014
    amount[fraud] *= np.exp(rng.normal(0.6, 0.8, fraud.sum()))
    hour[fraud] = np.where(
        rng.random(fraud.sum()) < 0.5, rng.uniform(0, 24, fraud.sum()), hour[fraud]
    )
    factor = rng.normal(0, 1, (n, 6)) @ rng.normal(0, 0.5, (6, 6)) + rng.normal(0, 1, (n, 6))
    factor[fraud] += rng.normal(0, 1, (fraud.sum(), 1)) + np.array([1.6, -1.3, 0.9, 0, 0, 1.1])
    count = rng.poisson(1.5 + 4 * fraud * (rng.random(n) < 0.5))
    score = sigmoid(rng.normal(-3, 1, n) + 2.2 * fraud)
    kind = np.where(
        fraud & (rng.random(n) < 0.5),
        "online",
        rng.choice(["chip", "contactless", "online", "stripe"], n, p=[0.4, 0.42, 0.16, 0.02]),
    )
    when = [
        datetime(2024, 1, 1) + timedelta(days=int(d), hours=float(h))
        for d, h in zip(day, hour, strict=True)
    ]
    factors = {f"V{k + 1}": factor[:, k].round(4) for k in range(6)}
    return _columns(paid_at=when, amount=amount.round(2), entry=kind, country_risk=_gaps(rng, rng.beta(2, 8, n).round(3), 0.08),
                    payments_last_hour=count, legacy_anomaly_score=score.round(4), **factors, is_fraud=fraud.astype(int))  # fmt: skip
