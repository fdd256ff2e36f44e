//! Distinct lists by bare functions.

use std::time::Duration;

use super::default_client::default_client;
use super::holdings::{MOST, holdings};
use crate::distinct_list::DistinctList;
use crate::error::{Answer, Result};
use crate::report::Report;

/// Sets up a session that ends after `duration`: [`Answer::Ok`], or [`Answer::Exists`] if the
/// session existed and was joined.
///
/// # Errors
/// As [`DistinctList::set_up`].
pub fn distinct_list_set_up(session: &[u8], duration: Duration) -> Result<Report> {
    let mut list = default_client()?.distinct_list(session)?;
    let set_up = list.set_up(duration)?;
    let report = list.report(set_up);
    remember(session, list);
    Ok(report)
}

/// Inserts a key: [`Answer::Ok`] for the first insert, [`Answer::Duplicate`] for all others, or
/// [`Answer::NotFound`] if there is no such session.
///
/// # Errors
/// As [`DistinctList::insert`].
pub fn distinct_list_insert(session: &[u8], key: &[u8]) -> Result<Report> {
    let mut list = list(session)?;
    let Some(insertion) = list.insert(key)? else { return Ok(list.report_not_found()) };
    let report = list.report(insertion);
    // A session that is known already is not replaced: another thread may have set it up again in
    // the meantime.
    let known = holdings().sessions.contains_key(session);
    if !known {
        remember(session, list);
    }
    Ok(report)
}

/// Ends a session for all clients: [`Answer::Ok`], or [`Answer::NotFound`] if there was none, or
/// another one than this process set up. Later inserts of this process are refused until it sets
/// the session up again.
///
/// # Errors
/// As [`DistinctList::tear_down`].
pub fn distinct_list_tear_down(session: &[u8]) -> Result<Report> {
    let mut list = list(session)?;
    Ok(if list.tear_down()? { Answer::Ok.into() } else { list.report_not_found() })
}

/// The session as this process knows it. A session that it set up stays known, even after its end.
fn list(session: &[u8]) -> Result<DistinctList> {
    let known = holdings().sessions.get(session).cloned();
    match known {
        Some(list) => Ok(list),
        None => default_client()?.distinct_list(session),
    }
}

fn remember(session: &[u8], list: DistinctList) {
    let sessions = &mut holdings().sessions;
    if sessions.len() >= MOST && !sessions.contains_key(session) {
        sessions.retain(|_, list| !list.has_ended());
    }
    sessions.insert(session.to_vec(), list);
}
