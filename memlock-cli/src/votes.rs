//! What each server of a quorum says of a lock.

use memlock_core::name::Key;
use memlock_core::{Client, OwnerRecord};
use serde_json::{Value, json};

use crate::connect::is_quorum;
use crate::exit::{CliError, Status};
use crate::text::shown;

/// The vote of one server.
pub(crate) struct Vote {
    pub(crate) server: String,
    of: Result<Of, CliError>,
}

enum Of {
    Nobody,
    /// It gives no votes now, and why.
    Abstains(String),
    Holder(OwnerRecord),
    /// A client that does not use memlock.
    Other,
}

/// The votes of all servers, after the lock was read; none if no majority decides.
pub(crate) fn votes(client: &Client, key: &Key) -> Vec<Vote> {
    if !is_quorum(client) {
        return Vec::new();
    }
    let servers = client.nodes().into_iter().enumerate();
    servers.map(|(place, node)| Vote { server: node.name, of: vote(client, place, key) }).collect()
}

fn vote(client: &Client, place: usize, key: &Key) -> Result<Of, CliError> {
    let values = client.admin(place)?.values(&[key.as_str().to_owned()])?;
    let Some(Some((content, _))) = values.into_iter().next() else {
        return Ok(client.abstention(place).map_or(Of::Nobody, |it| Of::Abstains(it.why)));
    };
    Ok(content.bytes().and_then(OwnerRecord::parse).map_or(Of::Other, Of::Holder))
}

impl Vote {
    /// The vote for people, as what follows the server's name.
    pub(crate) fn text(&self) -> String {
        match &self.of {
            Ok(Of::Nobody) => "votes for nobody".to_owned(),
            Ok(Of::Holder(record)) => format!("votes for {}", process(&record.host, record.pid)),
            Ok(Of::Other) => "has the item of a plain client".to_owned(),
            Ok(Of::Abstains(why)) => format!("abstains. {why}"),
            Err(error) if error.status == Status::UNREACHABLE => "does not answer".to_owned(),
            Err(error) => format!("cannot be asked. {}", error.message),
        }
    }

    pub(crate) fn json(&self) -> Value {
        let (token, error) = match &self.of {
            Ok(Of::Holder(record)) => (Some(record.token.to_string()), None),
            Ok(_) => (None, None),
            Err(error) => (None, Some(&error.message)),
        };
        let abstains = match &self.of {
            Ok(Of::Abstains(why)) => Some(why),
            _ => None,
        };
        json!({ "server": self.server, "token": token, "abstains": abstains, "error": error })
    }
}

/// A process of a host, for people.
pub(crate) fn process(host: &str, pid: u32) -> String {
    format!("{}, process {pid}", shown(host.as_bytes()))
}
