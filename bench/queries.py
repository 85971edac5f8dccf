# SPDX-License-Identifier: LGPL-2.1-or-later
"""queries.py duckdb|polars ROUNDS: many small, different queries on small tables: much code, little data.  One thread."""

import datetime
import os
import sys

TABLES = {
    "c": "SELECT i AS ck, 'c' || i AS name, i % 25 AS nation, (i * 7919 % 10000) / 100.0 AS bal, i % 4 AS seg FROM range(1500) t(i)",
    "o": "SELECT i AS ok, i * 31 % 1500 AS ck, date '1992-01-01' + CAST(i * 7 % 2400 AS int) AS d, (i * 7907 % 100000) / 10.0 AS total, "
         "'P' || (i % 5) AS prio FROM range(3000) t(i)",
    "l": "SELECT i AS lk, i * 17 % 3000 AS ok, 1 + i % 50 AS qty, (i * 7883 % 90000) / 10.0 AS price, (i % 11) / 100.0 AS disc, "
         "'m' || (i % 7) AS mode FROM range(6000) t(i)",
}
QUERIES = [
    "SELECT mode, sum(qty), avg(price), sum(price * (1 - disc)), count(*) FROM l WHERE qty < 40 GROUP BY mode ORDER BY mode",
    "SELECT nation, sum(price) r FROM c JOIN o USING (ck) JOIN l ON l.ok = o.ok GROUP BY nation ORDER BY r DESC",
    "SELECT prio, count(*) FROM o WHERE EXISTS (SELECT * FROM l WHERE l.ok = o.ok AND qty > 9) GROUP BY prio ORDER BY prio",
    "SELECT year(d) y, nation, sum(price) FROM o JOIN l USING (ok) JOIN c USING (ck) GROUP BY ROLLUP (y, nation) ORDER BY ALL LIMIT 20",
    "SELECT ck, count(o.ok) k FROM c LEFT JOIN o USING (ck) GROUP BY ck HAVING count(o.ok) > 2 ORDER BY k DESC, ck LIMIT 7",
    "SELECT name, rank() OVER (PARTITION BY seg ORDER BY bal DESC) k, lag(bal) OVER (ORDER BY ck) g FROM c QUALIFY k < 3 ORDER BY name",
    "SELECT substr(name, 1, 3) x, string_agg(name, ',' ORDER BY ck) FROM c WHERE ck < 100 GROUP BY x ORDER BY x",
    "SELECT * FROM (SELECT nation, seg, bal FROM c) PIVOT (avg(bal) FOR seg IN (0, 1, 2)) ORDER BY nation",
    "SELECT regexp_replace(name, '[0-9]+', '#'), upper(name), md5(name) FROM c WHERE name LIKE 'c1%9' ORDER BY 3 LIMIT 5",
    "SELECT quantile_cont(total, [.1, .5, .9]), stddev(total), skewness(total), approx_count_distinct(ck) FROM o",
    "SELECT date_trunc('month', d) m, count(*) FILTER (WHERE prio = 'P1'), max_by(ok, total) FROM o GROUP BY m ORDER BY m LIMIT 12",
    "WITH RECURSIVE f(n, a, b) AS (SELECT 1, 0::bigint, 1::bigint UNION ALL SELECT n + 1, b, a + b FROM f WHERE n < 60) SELECT max(a) FROM f",
    "SELECT a.ok FROM o a SEMI JOIN l ON a.ok = l.ok AND l.qty > 48 ANTI JOIN c ON c.ck = a.ck AND c.nation = 3 ORDER BY 1 LIMIT 9",
    "SELECT CASE WHEN qty < 10 THEN 'low' ELSE 'high' END b, median(price), histogram(mode) FROM l GROUP BY b ORDER BY b",
    "SUMMARIZE SELECT * FROM c",
    "EXPLAIN SELECT * FROM c JOIN o USING (ck) JOIN l USING (ok) WHERE c.bal < 5",
]


def duckdb_calls():
    import duckdb
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for name, query in TABLES.items():
        connection.execute(f"CREATE TABLE {name} AS {query}")
    return [lambda query=query: connection.execute(query).fetchall() for query in QUERIES]


def polars_calls():
    os.environ["POLARS_MAX_THREADS"] = "1"
    import polars as pl
    x = pl.col
    c = pl.DataFrame({"ck": range(1500)}).with_columns(name=pl.format("c{}", x("ck")), nation=x("ck") % 25, bal=x("ck") * 7919 % 10000 / 100,
                                                       seg=x("ck") % 4).lazy()
    o = pl.DataFrame({"ok": range(3000)}).with_columns(
        ck=x("ok") * 31 % 1500, d=pl.lit(datetime.date(1992, 1, 1)) + pl.duration(days=x("ok") * 7 % 2400),
        total=x("ok") * 7907 % 100000 / 10, prio=pl.format("P{}", x("ok") % 5)).lazy()
    l_ = pl.DataFrame({"lk": range(6000)}).with_columns(ok=x("lk") * 17 % 3000, qty=1 + x("lk") % 50, price=x("lk") * 7883 % 90000 / 10,
                                                        disc=x("lk") % 11 / 100, mode=pl.format("m{}", x("lk") % 7)).lazy()
    return [
        lambda: l_.filter(x("qty") < 40).group_by("mode").agg(x("qty").sum(), x("price").mean(), pl.len()).sort("mode").collect(),
        lambda: c.join(o, on="ck").join(l_, on="ok").filter(x("seg") == 1).group_by("nation").agg(x("price").sum()).sort("price").collect(),
        lambda: o.with_columns(r=x("total").rank().over("ck"), s=x("total").shift(1).over("ck")).filter(x("r") < 2).collect(),
        lambda: o.sort("d").group_by_dynamic("d", every="1mo").agg(x("total").sum(), x("ok").max()).collect(),
        lambda: c.with_columns(z=x("name").str.replace_all(r"[0-9]+", "#"), u=x("name").str.to_uppercase()).filter(
            x("name").str.contains("c1.*9")).collect(),
        lambda: c.collect().pivot(on="seg", index="nation", values="bal", aggregate_function="mean"),
        lambda: o.select(x("total").quantile(.5), sd=x("total").std(), sk=x("total").skew(), n=x("ck").n_unique()).collect(),
        lambda: l_.select(pl.when(x("qty") < 10).then(pl.lit("low")).otherwise(pl.lit("high")).alias("b"), x("price")).group_by("b").agg(
            x("price").median()).collect(),
        lambda: o.with_columns(y=x("d").dt.year(), m=x("d").dt.strftime("%Y-%m")).filter(x("y") == 1994).collect(),
        lambda: o.join(l_.filter(x("qty") > 48), on="ok", how="semi").join(c.filter(x("nation") == 3), on="ck", how="anti").sort("ok").collect(),
        lambda: o.with_columns(rm=x("total").rolling_mean(7), cs=x("total").cum_sum(), e=x("total").ewm_mean(span=5)).tail(5).collect(),
        lambda: pl.read_json(o.head(50).collect().write_json().encode()),
        lambda: pl.read_csv(l_.head(300).collect().write_csv().encode()),
        lambda: o.collect().describe(),
        lambda: c.join(o, on="ck").join(l_, on="ok").filter(x("bal") > 5, x("qty") < 4).explain(),
    ]


if __name__ == "__main__":
    calls = {"duckdb": duckdb_calls, "polars": polars_calls}[sys.argv[1]]()
    for _ in range(int(sys.argv[2])):
        for call in calls:
            call()
