//! `memlock doctor`: whether the servers of the URL are fit for locks, and how to make them so.

mod checks;
mod probe;

use std::time::Duration;

use memlock_core::Client;
use memlock_core::store::Address;
use serde_json::{Value, json};

use crate::args::Doctor;
use crate::connect::{Url, connect};
use crate::exit::{CliError, Status};
use crate::memcached_text::MemcachedText;
use crate::out::{Look, Out};

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Good,
    /// To know, and nothing to mend.
    Note,
    /// Something should be mended.
    Warning,
    /// Locks cannot be trusted there.
    Bad,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Good => "ok",
            Verdict::Note => "note",
            Verdict::Warning => "warning",
            Verdict::Bad => "bad",
        }
    }

    fn look(self) -> Look {
        match self {
            Verdict::Good => Look::Good,
            Verdict::Note => Look::Dim,
            Verdict::Warning => Look::Warning,
            Verdict::Bad => Look::Bad,
        }
    }
}

/// One thing that was looked at.
#[derive(Debug)]
pub(crate) struct Finding {
    what: &'static str,
    verdict: Verdict,
    pub(crate) said: String,
    /// What to do.
    mend: Option<String>,
    /// With which further flags to start memcached.
    flags: Vec<String>,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, said: impl Into<String>) -> Finding {
        Finding { what, verdict, said: said.into(), mend: None, flags: Vec::new() }
    }

    fn mend(mut self, how: impl Into<String>) -> Finding {
        self.mend = Some(how.into());
        self
    }

    fn flag(mut self, flag: impl Into<String>) -> Finding {
        self.flags.push(flag.into());
        self
    }
}

pub(crate) fn doctor(url: &Url, args: &Doctor) -> Result<Status, CliError> {
    let client = connect(url)?;
    // Nothing is judged by a lease that could not be used.
    client.mutex("lease", args.lease)?;
    let mut out = Out::new();
    let (mut worst, mut unreachable, mut reports) = (Verdict::Good, false, Vec::new());
    for (place, server) in client.servers().iter().enumerate() {
        let findings = match examine(&url.text, &client, place, server, args) {
            Ok(findings) => findings,
            Err(trouble) => {
                unreachable |= trouble.status == Status::UNREACHABLE;
                vec![Finding::new("connection", Verdict::Bad, trouble.message)]
            }
        };
        worst = findings.iter().map(|finding| finding.verdict).fold(worst, Verdict::max);
        if args.json {
            reports.push(report(server, &findings));
        } else {
            tell(&mut out, place, server, &findings)?;
        }
    }
    if args.json {
        out.json(&json!({ "verdict": worst.word(), "servers": reports }))?;
    }
    Ok(match worst {
        _ if unreachable => Status::UNREACHABLE,
        Verdict::Good | Verdict::Note => Status::OK,
        Verdict::Warning => Status::NO,
        Verdict::Bad => Status::UNFIT,
    })
}

fn examine(
    url: &str,
    client: &Client,
    place: usize,
    server: &Address,
    args: &Doctor,
) -> Result<Vec<Finding>, CliError> {
    let mut memcached_text = MemcachedText::connect(server)?;
    let mut findings = numbers(&mut memcached_text, args.lease)?;
    findings.push(probe::round_trips(&mut memcached_text, server)?);
    if findings
        .iter()
        .any(|finding| finding.verdict == Verdict::Bad && matches!(finding.what, "version" | "cas"))
    {
        findings.push(Finding::new(
            "bells",
            Verdict::Note,
            "were not tried, since locks do not work there",
        ));
    } else {
        findings.push(probe::bells(url, client, place));
    }
    Ok(findings)
}

/// What the server's own numbers say.
pub(crate) fn numbers(
    memcached_text: &mut MemcachedText,
    lease: Duration,
) -> Result<Vec<Finding>, CliError> {
    let (stats, skew) = probe::stats_and_clock(memcached_text)?;
    let settings = memcached_text.stats("stats settings")?;
    let mut findings = checks::all(&stats, &settings, lease);
    findings.push(probe::clock(skew));
    Ok(findings)
}

fn tell(
    out: &mut Out,
    place: usize,
    server: &Address,
    findings: &[Finding],
) -> std::io::Result<()> {
    if place > 0 {
        out.line("")?;
    }
    let title = out.paint(Look::Bold, format!("memcached at {}", server.name));
    out.line(title)?;
    let mut rows = Vec::new();
    for Finding { what, verdict, said, mend, .. } in findings {
        let cell = |look, text: &str| (look, text.to_owned());
        rows.push(vec![
            cell(verdict.look(), verdict.word()),
            cell(Look::MemcachedText, what),
            cell(Look::MemcachedText, said),
        ]);
        if let Some(mend) = mend {
            rows.push(vec![
                cell(Look::MemcachedText, ""),
                cell(Look::MemcachedText, ""),
                cell(Look::Bold, &format!("→ {mend}")),
            ]);
        }
    }
    out.table(&rows)?;
    let flags: Vec<&str> =
        findings.iter().flat_map(|finding| &finding.flags).map(String::as_str).collect();
    let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good);
    let verdict = match worst {
        Verdict::Good | Verdict::Note => "It is fit for locks.".to_owned(),
        _ if flags.is_empty() => "It should be mended.".to_owned(),
        _ => format!("Start it with, in addition to what it has: {}", flags.join(" ")),
    };
    let verdict = out.paint(worst.look(), verdict);
    out.line(verdict)
}

fn report(server: &Address, findings: &[Finding]) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|Finding { what, verdict, said, mend, flags }| {
            json!({ "what": what, "verdict": verdict.word(), "said": said, "mend": mend, "flags": flags })
        })
        .collect();
    json!({ "server": server.name, "findings": findings })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::memcached_text::tests::server_that_says;

    #[test]
    fn numbers_that_no_server_has_are_judged_like_others() {
        for time in ["nan", "inf", "-1", "1e300", "18446744073709551615"] {
            let stats = format!(
                "STAT time {time}\r\nSTAT version 1.6.18\x1b[31m\r\nSTAT uptime 18446744073709551615\r\n\
                 STAT max_connections 18446744073709551615\r\nSTAT curr_connections 18446744073709551615\r\nEND\r\n"
            );
            let said = format!("{stats}END\r\n").into_bytes();
            let mut memcached_text = server_that_says([said], Duration::from_secs(1));
            let findings = numbers(&mut memcached_text, Duration::from_secs(60)).unwrap();
            assert!(
                findings
                    .iter()
                    .any(|finding| finding.what == "clock" && finding.verdict == Verdict::Note)
            );
            assert!(findings.iter().all(|finding| !finding.said.contains('\x1b')), "{findings:?}");
        }
    }
}
