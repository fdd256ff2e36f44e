//! `memlock bench`: how fast locks are on the user's own server, next to what a round trip takes
//! there.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::store::Node;
use memlock_core::{Client, Lock, Release};
use serde_json::{Value, json};

use crate::args::Bench;
use crate::connect::{Url, connect, usual_lease};
use crate::duration::brief;
use crate::exit::{CliError, Status};
use crate::measure::{name_on, quantile};
use crate::out::{Out, Style};

/// Times of one kind.
struct Row {
    what: String,
    times: Vec<Duration>,
    /// How long it took to get them all.
    took: Duration,
}

impl Row {
    fn new(what: impl Into<String>, mut times: Vec<Duration>, took: Duration) -> Row {
        times.sort_unstable();
        Row { what: what.into(), times, took }
    }

    fn half(&self) -> Duration {
        quantile(&self.times, 0.5)
    }

    fn most(&self) -> Duration {
        quantile(&self.times, 0.99)
    }

    fn pace(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    fn in_round_trips(&self, round_trip: Duration) -> f64 {
        self.half().as_secs_f64() / round_trip.as_secs_f64().max(1e-9)
    }
}

pub(crate) fn bench(url: &Url, args: &Bench) -> Result<Status, CliError> {
    let client = connect(url)?;
    let mut out = Out::new();
    let mut reports = Vec::new();
    for (place, server) in client.nodes().iter().enumerate() {
        let name = name_on(&client, place, "bench");
        let rows = vec![
            round_trips(&client, place, args.time)?,
            pairs(&client, &name, args.time)?,
            hand_overs(&url.text, &name, 2, args)?,
            hand_overs(&url.text, &name, args.contenders.into(), args)?,
        ];
        if args.json {
            reports.push(report(server, &rows));
        } else {
            tell(&mut out, server, &rows)?;
        }
    }
    if args.json {
        out.json(&Value::from(reports))?;
    }
    Ok(Status::OK)
}

fn round_trips(client: &Client, place: usize, time: Duration) -> Result<Row, CliError> {
    let mut admin = client.admin(place)?;
    let began = Instant::now();
    let mut times = vec![admin.round_trip()?];
    while began.elapsed() < time {
        times.push(admin.round_trip()?);
    }
    Ok(Row::new("round trip", times, began.elapsed()))
}

/// Takes a free lock, and gives it back.
fn pairs(client: &Client, name: &str, time: Duration) -> Result<Row, CliError> {
    let mutex = client.mutex(name, usual_lease(client))?;
    // Dials.
    unlock(mutex.lock()?)?;
    let mut times = Vec::new();
    let began = Instant::now();
    while times.is_empty() || began.elapsed() < time {
        let before = Instant::now();
        unlock(mutex.lock()?)?;
        times.push(before.elapsed());
    }
    Ok(Row::new("lock + unlock", times, began.elapsed()))
}

/// A lock that was lost meanwhile would make the figures those of another lock.
fn unlock(mut lock: Lock) -> Result<(), CliError> {
    match lock.unlock()? {
        Release::Released => Ok(()),
        lost => Err(CliError::new(Status::LOST, lock.report(lost).to_string())),
    }
}

/// From one's release to the next one's entry, where several want the same lock again and again.
fn hand_overs(url: &str, name: &str, contenders: usize, args: &Bench) -> Result<Row, CliError> {
    // The last releaser, and when it released.
    let released: Mutex<Option<(usize, Instant)>> = Mutex::new(None);
    let began = Instant::now();
    let contend = |own: usize| -> Result<Vec<Duration>, CliError> {
        // A client of its own stands in the queue as another process would.
        let client = Client::connect(url)?;
        let mutex = client.mutex(name, usual_lease(&client))?;
        let mut times = Vec::new();
        while began.elapsed() < args.time {
            let lock = mutex.lock()?;
            let last = released.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((who, duration)) = last
                && who != own
            {
                times.push(duration.elapsed());
            }
            thread::sleep(args.hold);
            *released.lock().unwrap_or_else(PoisonError::into_inner) = Some((own, Instant::now()));
            unlock(lock)?;
        }
        Ok(times)
    };
    let times = thread::scope(|scope| {
        let contend = &contend;
        let threads: Vec<_> =
            (0..contenders).map(|own| scope.spawn(move || contend(own))).collect();
        let ended = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(CliError::new(Status::BUG, "A contender panicked.")))
        });
        ended.collect::<Result<Vec<_>, _>>()
    })?;
    let what = format!("hand-over among {contenders}");
    Ok(Row::new(what, times.into_iter().flatten().collect(), began.elapsed()))
}

fn tell(out: &mut Out, server: &Node, rows: &[Row]) -> std::io::Result<()> {
    let title = out.paint(Style::Bold, &server.title);
    out.line(title)?;
    let round_trip = rows.first().map(Row::half).unwrap_or_default();
    let head = ["", "p50", "p99", "in round trips", "a second"];
    let mut table = vec![head.map(|title| (Style::Dim, title.to_owned())).to_vec()];
    for row in rows {
        let cells = [
            row.what.clone(),
            brief(row.half()),
            brief(row.most()),
            format!("{:.1}", row.in_round_trips(round_trip)),
            format!("{:.0}", row.pace()),
        ];
        table.push(cells.map(|text| (Style::Normal, text)).to_vec());
    }
    out.table(&table)
}

fn report(server: &Node, rows: &[Row]) -> Value {
    let round_trip = rows.first().map(Row::half).unwrap_or_default();
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "what": row.what,
                "p50_us": row.half().as_secs_f64() * 1e6,
                "p99_us": row.most().as_secs_f64() * 1e6,
                "round_trips": row.in_round_trips(round_trip),
                "per_second": row.pace(),
                "count": row.times.len(),
            })
        })
        .collect();
    json!({ "server": server.name, "rows": rows })
}
