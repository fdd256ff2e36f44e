//! Times: durations as people write and read them, and dates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use memlock_core::clock::brief;

/// Reads `250ms`, `10s`, `1.5s`, `5m`, `2h`, `1d`; a number alone is seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => f64::NAN,
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * seconds).ok())
        .ok_or_else(|| "write a duration such as 250ms, 10s, 5m, 2h or 1d".to_owned())
}

/// The same, but for zero.
pub(crate) fn parse_above_zero(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("it has to be above 0".to_owned()),
        duration => Ok(duration),
    }
}

/// A number of bytes for people.
pub(crate) fn brief_size(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Now, in Unix seconds.
pub(crate) fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// So much later than now, in Unix seconds.
pub(crate) fn after(duration: Duration) -> u64 {
    unix_now().saturating_add(duration).as_secs()
}

/// A moment as people and scripts read it: `2026-11-22T01:39:03Z`.
pub(crate) fn date(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86400, unix_seconds % 86400);
    // Howard Hinnant's civil_from_days: years begin in March, so that the leap day is the last one.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_unit() {
        for (text, millis) in
            [("250ms", 250), ("10s", 10_000), ("1.5s", 1500), ("7", 7000), ("5m", 300_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(parse("1d"), Ok(Duration::from_secs(86400)));
        for bad in
            ["", "s", "-1s", "1x", "1 s", "NaN", "inf", "1.2.3s", "1e3", "99999999999999999999999d"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_311_543, "2026-11-22T01:39:03Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
