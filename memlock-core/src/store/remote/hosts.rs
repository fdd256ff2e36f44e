//! The servers that a URL names, and which of them owns a route.

use super::settings::Place;
use crate::error::{Error, Result};
use crate::hash::{fnv1a, mix};
use crate::store::Route;
use crate::store::url::{self, Url};

/// A server with a name.
pub(super) trait Named {
    fn name(&self) -> &str;
}

/// Servers; at least one.
#[derive(Debug)]
pub(super) struct Hosts<T> {
    all: Vec<T>,
}

impl<T: Named> Hosts<T> {
    pub(super) fn new(url: &Url, servers: impl Iterator<Item = T>) -> Result<Hosts<T>> {
        let mut all: Vec<T> = Vec::new();
        for server in servers {
            if all.iter().any(|known| known.name() == server.name()) {
                return Err(Error::config(format!(
                    "{} is named twice.",
                    url.part("The server", server.name())
                )));
            }
            all.push(server);
        }
        if all.is_empty() {
            return Err(Error::config(format!("{} names no server.", url.shown())));
        }
        Ok(Hosts { all })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.all.iter()
    }

    #[cfg(feature = "admin")]
    pub(super) fn get(&self, place: usize) -> Option<&T> {
        self.all.get(place)
    }

    /// Rendezvous hashing: the server with the highest weight for the route. A server that is down
    /// keeps its keys, because its locks may still be held behind a broken network: failing over
    /// would grant a lock twice.
    pub(super) fn owner(&self, route: Route) -> &T {
        &self.all[self.place(route)]
    }

    pub(super) fn place(&self, route: Route) -> usize {
        (1..self.all.len()).fold(0, |best, place| {
            let key = |place: usize| {
                let name = self.all[place].name();
                (weight(name, route), name)
            };
            if key(place) > key(best) { place } else { best }
        })
    }
}

/// A server's weight for a route: the SplitMix64 finalizer over the route's hash and the FNV-1a of
/// the server's name. Pinned by golden vectors: programs of different versions must agree on it.
fn weight(server: &str, route: Route) -> u64 {
    mix(fnv1a(server.as_bytes()) ^ route.hash())
}

/// Parses `host`, `host:port` or `[ipv6]:port`, a part of the URL.
pub(in crate::store) fn split(url: &Url, text: &str, default_port: u16) -> Result<Place> {
    let (host, port) = url::host(text).map_err(|why| bad_server(url, text, why))?;
    Ok(Place::Tcp(host.to_ascii_lowercase(), port.unwrap_or(default_port)))
}

/// The error of a server in the URL.
pub(in crate::store) fn bad_server(url: &Url, text: &str, why: &str) -> Error {
    Error::config(format!(
        "{} {why}: write host, host:port or [ipv6]:port, and commas between servers.",
        url.part("The server", text)
    ))
}

/// Parses the location of a `…+unix` URL, the path of a socket.
#[cfg(any(feature = "memcached", feature = "redis"))]
pub(in crate::store) fn unix_socket(url: &Url) -> Result<Place> {
    use crate::name::percent_decode;

    let location = url.location()?;
    let path = location.strip_prefix("//").unwrap_or(location);
    let path = percent_decode(path).and_then(|path| String::from_utf8(path).ok());
    // Behind an '&' may be a password.
    let is_path = |path: &String| path.starts_with('/') && !location.contains('&');
    path.filter(is_path).map(|path| Place::Unix(path.into())).ok_or_else(|| {
        Error::config(format!(
            "{} names no socket: write {}:///path/of/socket, parameters behind '?', and '&' in the path \
             as %26.",
            url.shown(),
            url.scheme
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Keyspace;
    use crate::store::remote::{Address, Settings};
    use std::time::Duration;

    impl Named for Address {
        fn name(&self) -> &str {
            Address::name(self)
        }
    }

    fn hosts(text: &str) -> Result<Hosts<Address>> {
        let url = Url::parse(&format!("memcached://{text}"))?;
        let timeout = Duration::from_secs(1);
        let settings = Settings { connect_timeout: timeout, io_timeout: timeout, pool: 1 };
        let places: Result<Vec<Place>> =
            text.split(',').map(|host| split(&url, host, 11211)).collect();
        Hosts::new(&url, places?.into_iter().map(|place| Address::new(place, settings)))
    }

    #[test]
    fn hosts_are_read_in_every_form() {
        for (text, name) in [
            ("localhost", "localhost:11211"),
            ("LocalHost:1", "localhost:1"),
            ("[::1]", "[::1]:11211"),
            ("[::1]:12", "[::1]:12"),
        ] {
            assert_eq!(hosts(text).unwrap().all[0].name(), name);
        }
        for bad in ["", "a,", ":1", "a:0", "a:x", "a:70000", "[::1]x", "::1", "a,a:11211"] {
            assert!(hosts(bad).is_err(), "{bad}");
        }
    }

    /// Other programs, and other versions of memlock, must find the same server.
    #[test]
    fn the_choice_of_server_is_pinned() {
        let hosts = hosts("a,b,c:11212").unwrap();
        let chosen: Vec<&str> = ["x", "y", "z", "payments/42", "cron", "ü"]
            .iter()
            .map(|name| hosts.owner(Route::of(&Keyspace::default().lock(name.as_bytes()))).name())
            .collect();
        assert_eq!(chosen, ["c:11212", "a:11211", "b:11211", "a:11211", "b:11211", "c:11212"]);
        let route = Route::of(&Keyspace::default().lock(b"x"));
        assert_eq!(route.hash(), 0x4dca128b630470ca);
        assert_eq!(weight("a:11211", route), 0x506b0f699d7ab001);
    }

    #[test]
    fn the_order_of_servers_does_not_matter_and_the_load_is_spread() {
        let (one, two) = (hosts("a,b,c").unwrap(), hosts("c,a,b").unwrap());
        let mut load = std::collections::HashMap::new();
        for number in 0..3000 {
            let route = Route::of(&Keyspace::default().lock(format!("name {number}").as_bytes()));
            assert_eq!(one.owner(route).name(), two.owner(route).name());
            *load.entry(one.owner(route).name()).or_insert(0) += 1;
        }
        assert!(load.values().all(|&share| (850..1150).contains(&share)), "{load:?}");
    }
}
