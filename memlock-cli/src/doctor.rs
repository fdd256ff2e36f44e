//! `memlock doctor`: whether the servers of the URL are fit for locks, and how to make them so.

mod probe;

use std::time::Duration;

use memlock_core::Client;
use memlock_core::store::admin::{Finding, Verdict};
use memlock_core::store::recovery::Guard;
use memlock_core::store::{Guarantees, Node, Scope, Survives, schemes};
use serde_json::{Value, json};

use crate::args::Doctor;
use crate::connect::{USUAL_LEASE, Url, connect};
use crate::exit::{CliError, Status};
use crate::out::{Out, Style};

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "ok",
        Verdict::Note => "note",
        Verdict::Warning => "warning",
        Verdict::Bad => "bad",
    }
}

fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Good => Style::Good,
        Verdict::Note => Style::Dim,
        Verdict::Warning => Style::Warning,
        Verdict::Bad => Style::Bad,
    }
}

/// Prints the statements that create what memlock needs in a database.
pub(crate) fn print_schema(scheme: &str) -> Result<Status, CliError> {
    Out::new().line(schemes::schema(scheme)?.trim_end())?;
    Ok(Status::OK)
}

pub(crate) fn doctor(url: &Url, args: &Doctor) -> Result<Status, CliError> {
    let client = connect(url)?;
    // Nothing is judged by a lease that could not be used.
    let guard = client.guarantees().guard.map(Guard::longest_lease);
    let lease = args.lease.or(guard).unwrap_or(USUAL_LEASE);
    client.mutex("lease", lease)?;
    let mut out = Out::new();
    let (mut worst, mut unreachable, mut reports) = (Verdict::Good, false, Vec::new());
    for (place, server) in client.nodes().iter().enumerate() {
        let findings = match examine(&url.text, &client, place, server, lease) {
            Ok(findings) => findings,
            Err(error) => {
                unreachable |= error.status == Status::UNREACHABLE;
                vec![Finding::new("connection", Verdict::Bad, error.message)]
            }
        };
        worst = findings.iter().map(|finding| finding.verdict).fold(worst, Verdict::max);
        if args.json {
            reports.push(report(server, &findings));
        } else {
            let is_missing = client.missing(place).is_some();
            tell(&mut out, place, server, &findings, is_missing)?;
        }
    }
    if args.json {
        out.json(&json!({ "verdict": word(worst), "servers": reports }))?;
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
    server: &Node,
    lease: Duration,
) -> Result<Vec<Finding>, CliError> {
    let mut admin = client.admin(place)?;
    let mut findings = admin.health(lease)?;
    if let Some(fit) =
        findings.iter_mut().find(|it| it.what == "evictions" && it.verdict == Verdict::Good)
        && client.guarantees().evicts
    {
        let how =
            "evictions=refuse in the URL, so that it is refused if it is ever started without this";
        fit.mend = Some(how.to_owned());
    }
    for (what, said) in client.guarantees().in_words() {
        // What was found on this server says more than what holds for all of its kind.
        if !findings.iter().any(|finding| finding.what == what) {
            let promise = Finding::new(what, Verdict::Note, said);
            findings.push(if what == "restart" { with_guard(client, promise) } else { promise });
        }
    }
    if client.missing(place).is_some() {
        let untried = "were not tried";
        findings.push(Finding::new(
            "round trip",
            Verdict::Note,
            "was not tried, since nothing is there yet",
        ));
        findings.push(Finding::new("wake-ups", Verdict::Note, untried));
        return Ok(findings);
    }
    findings.push(probe::round_trips(admin.as_mut(), server.timeout)?);
    if findings.iter().any(|finding| finding.is_fatal) {
        findings.push(Finding::new("wake-ups", Verdict::Note, probe::UNTRIED));
    } else {
        findings.extend(probe::locks(url, client, place, server.timeout));
    }
    Ok(findings)
}

/// Recommends a guard where a restart frees locks that are still held.
fn with_guard(client: &Client, restart: Finding) -> Finding {
    let Guarantees { scope, survives, guard, .. } = client.guarantees();
    let forgets = matches!(survives, Survives::Nothing | Survives::CleanRestart);
    if !forgets || scope != Scope::Network || guard.is_some() {
        return restart;
    }
    restart.mend(
        "?guard=60s in the URLs of all clients: then holders put their locks back. No lease may be \
         longer than that, and for so long after each start nothing new is given",
    )
}

fn tell(
    out: &mut Out,
    place: usize,
    server: &Node,
    findings: &[Finding],
    is_missing: bool,
) -> std::io::Result<()> {
    if place > 0 {
        out.line("")?;
    }
    let title = out.paint(Style::Bold, &server.title);
    out.line(title)?;
    let mut rows = Vec::new();
    for Finding { what, verdict, said, mend, .. } in findings {
        let cell = |style, text: &str| (style, text.to_owned());
        rows.push(vec![
            cell(style(*verdict), word(*verdict)),
            cell(Style::Normal, what),
            cell(Style::Normal, said),
        ]);
        if let Some(mend) = mend {
            rows.push(vec![
                cell(Style::Normal, ""),
                cell(Style::Normal, ""),
                cell(Style::Bold, &format!("→ {mend}")),
            ]);
        }
    }
    out.table(&rows)?;
    let flags: Vec<&str> =
        findings.iter().flat_map(|finding| &finding.flags).map(String::as_str).collect();
    let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good);
    let verdict = match worst {
        Verdict::Good | Verdict::Note if is_missing => {
            "Nothing is there yet; what could be examined is fit for locks.".to_owned()
        }
        Verdict::Good | Verdict::Note => "It is fit for locks.".to_owned(),
        _ if flags.is_empty() => "It should be mended.".to_owned(),
        _ => format!("Start it with, in addition to what it has: {}", flags.join(" ")),
    };
    let verdict = out.paint(style(worst), verdict);
    out.line(verdict)
}

fn report(server: &Node, findings: &[Finding]) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|Finding { what, verdict, said, mend, flags, .. }| {
            json!({ "what": what, "verdict": word(*verdict), "said": said, "mend": mend, "flags": flags })
        })
        .collect();
    json!({ "server": server.name, "findings": findings })
}
