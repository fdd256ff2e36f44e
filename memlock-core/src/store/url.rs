//! The URL that names the store: `scheme:location?name=value&…`.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::name::percent_decode;

/// The schemes, the cargo features that they need, and whether their URLs may contain a user and a
/// password in front of a host.
pub(super) const SCHEMES: [(&str, &str, bool); 11] = [
    ("memcached", "memcached", false),
    ("memcached+unix", "memcached", false),
    ("memory", "", false),
    ("mysql", "mysql", true),
    ("mariadb", "mysql", true),
    ("postgresql", "postgresql", true),
    ("postgres", "postgresql", true),
    ("redis", "redis", true),
    ("rediss", "redis, tls", true),
    ("redis+unix", "redis", false),
    ("sqlite", "sqlite", false),
];

/// The parameters whose values are no secrets.
const HARMLESS: [&str; 20] = [
    "bell",
    "connect_timeout",
    "db",
    "dbname",
    "durable",
    "engine",
    "evictions",
    "guard",
    "host",
    "io_timeout",
    "network",
    "notify",
    "outage",
    "pool",
    "port",
    "prefix",
    "schema",
    "socket",
    "sslmode",
    "tls",
];

/// What separates parameters, and begins their values: in other places, a secret may stand behind it.
const OF_PARAMETERS: [char; 3] = ['&', ';', '='];

/// In place of what may be a secret.
pub(super) const HIDDEN: &str = "***";

/// No URL that is shown is longer.
const LONGEST_SHOWN: usize = 1024;

/// The longest name of a host, in bytes.
const LONGEST_HOST: usize = 255;

/// A parsed URL. Each part of memlock takes the parameters that it knows; a parameter that remains
/// is a mistake.
///
/// The last '@' in front of the question mark ends the user and the password, and is a part of a path only
/// where a scheme has no users, and no colon is in front of it. Behind the question mark, '@' is encoded.
/// So no part of a password is taken for anything else.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: String,
    /// The text between the scheme's colon and the question mark, unchanged: each scheme parses it
    /// itself.
    location: String,
    params: Vec<(String, String)>,
    known: Vec<&'static str>,
    /// The URL as messages show it.
    shown: String,
    /// Whether the name of an unknown parameter can be no part of a secret.
    shows_names: bool,
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[allow(dead_code, reason = "each store takes the kinds of parameters that it has")]
impl Url {
    pub(crate) fn parse(text: &str) -> Result<Url> {
        let Some((scheme, rest)) = split_scheme(text) else {
            return Err(Error::config(
                "The URL does not begin with a scheme: write for example memcached://host:port, \
                 without quotes or white space in front of it.",
            ));
        };
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Url {
            scheme,
            location: location.to_owned(),
            params: Vec::new(),
            known: Vec::new(),
            shown: without_password(text),
            shows_names: plain(query).is_some(),
        };
        if has_forbidden(text) {
            return Err(Error::config(format!(
                "{} contains '#', white space or control characters: write them as %XX.",
                url.shown()
            )));
        }
        if query.contains('@') {
            return Err(Error::config(format!(
                "{} has '@' behind '?': write '@' in a parameter as %40, and '?' in a password as \
                 %3F.",
                url.shown()
            )));
        }
        for (place, param) in query.split('&').filter(|param| !param.is_empty()).enumerate() {
            // Neither its name nor its value is shown: they may be parts of a password.
            let bad =
                |why: &str| Error::config(format!("Parameter {} of the URL {why}.", place + 1));
            let (name, value) = param.split_once('=').ok_or_else(|| {
                bad("has no '=': write name=value, and '?' in other places as %3F")
            })?;
            if url.get(name).is_some() {
                return Err(bad("is given twice"));
            }
            let value =
                decode(value).ok_or_else(|| bad("has a broken %XX code: write '%' as %25"))?;
            url.params.push((name.to_owned(), value));
        }
        Ok(url)
    }

    /// The location of a scheme without users. An '@' behind a colon shows a user and a password.
    pub(crate) fn location(&self) -> Result<&str> {
        if self.location.rsplit_once('@').is_some_and(|(login, _)| login.contains(':')) {
            return Err(Error::config(format!(
                "{} has a user and a password, which {}: does not know; write '@' in a path as %40.",
                self.shown(),
                self.scheme
            )));
        }
        Ok(&self.location)
    }

    /// The location of a scheme that has neither users nor paths: the text after `//`.
    pub(crate) fn authority(&self) -> Result<&str> {
        let scheme = &self.scheme;
        let authority = self.location()?.strip_prefix("//").ok_or_else(|| {
            Error::config(format!("{} has no //: write {scheme}://…", self.shown()))
        })?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        if authority.contains('/') || plain(authority).is_none() {
            return Err(Error::config(format!(
                "{} has a path or a user, which {scheme}:// does not know.",
                self.shown()
            )));
        }
        Ok(authority)
    }

    /// The location of a scheme with users: `//[[user]:password@]hosts[/path]`, each part decoded
    /// except the hosts.
    #[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis"))]
    pub(crate) fn account(&self) -> Result<Account<'_>> {
        let bad = |why: &str| {
            Error::config(format!(
                "{} {why}: write {scheme}://host:port or {scheme}://user:password@host:port.",
                self.shown(),
                scheme = self.scheme
            ))
        };
        let rest = self.location.strip_prefix("//").ok_or_else(|| bad("has no //"))?;
        // A password that is not encoded may contain every other character.
        let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        if rest.contains(OF_PARAMETERS) {
            return Err(bad("has '&', ';' or '=' in front of '?', behind which parameters stand"));
        }
        let decoded = |text: &str| {
            let text =
                decode(text).ok_or_else(|| bad("has a broken %XX code (write '%' as %25)"))?;
            Ok::<_, Error>(Some(text).filter(|text| !text.is_empty()))
        };
        let user = decoded(user)?;
        if user.as_ref().is_some_and(|user| user.contains(':')) {
            return Err(bad("has a user with an encoded ':', which stands in front of a password"));
        }
        Ok(Account { user, password: decoded(password)?.map(Secret), hosts, path: decoded(path)? })
    }

    /// The URL as the subject of a sentence, as [`without_password`] shows it.
    pub(crate) fn shown(&self) -> String {
        format!("The URL {:?}", self.shown)
    }

    /// A part of the URL as the subject of a sentence. It is quoted if the URL is shown with it.
    pub(crate) fn part(&self, what: &str, text: &str) -> String {
        match self.shown.contains(text) {
            true => format!("{what} {text:?} in the URL"),
            false => format!("{what} in the URL {:?}", self.shown),
        }
    }

    /// The error of a parameter. Its value is in the message, if the URL is shown with it.
    pub(crate) fn bad_parameter(&self, name: &str, value: &str, why: &str) -> Error {
        let value = match self.shown.contains(&format!("{name}={value}")) {
            true => format!("={value:?}"),
            false => String::new(),
        };
        Error::config(format!("The URL's parameter {name}{value} {why}"))
    }

    /// A parameter that remains for another part to take.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Takes a parameter.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let place = self.params.iter().position(|(given, _)| given == name)?;
        Some(self.params.remove(place).1)
    }

    /// Takes a parameter whose value is a secret. What stands behind it may be a part of it.
    #[cfg(any(feature = "postgresql", feature = "redis"))]
    pub(crate) fn take_secret(&mut self, name: &'static str) -> Option<Secret> {
        let secret = self.take(name).map(Secret);
        self.shows_names &= secret.is_none();
        secret
    }

    /// Takes a duration: `250ms`, `1.5s`, or seconds without a unit.
    pub(crate) fn take_duration(
        &mut self,
        name: &'static str,
        default: Duration,
    ) -> Result<Duration> {
        let example = "250ms or 2s";
        Ok(self.take_some_duration(name, Duration::from_millis(1), example)?.unwrap_or(default))
    }

    /// Takes a duration that has no default.
    pub(crate) fn take_some_duration(
        &mut self,
        name: &'static str,
        least: Duration,
        example: &str,
    ) -> Result<Option<Duration>> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let (number, unit) = match text.strip_suffix("ms") {
            Some(number) => (number, Duration::from_millis(1)),
            None => (text.strip_suffix('s').unwrap_or(&text), Duration::from_secs(1)),
        };
        let range = least..=Duration::from_secs(3600);
        match multiple(number, unit).filter(|duration| range.contains(duration)) {
            Some(duration) => Ok(Some(duration)),
            None => Err(self.bad_parameter(
                name,
                &text,
                &format!("is not a duration from {least:?} to 3600s: write for example {example}."),
            )),
        }
    }

    /// Takes a count.
    pub(crate) fn take_count(&mut self, name: &'static str, default: usize) -> Result<usize> {
        let Some(text) = self.take(name) else { return Ok(default) };
        text.parse()
            .map_err(|_| self.bad_parameter(name, &text, "is not a whole number from 0 up."))
    }

    /// Fails if a parameter is left that no part took.
    pub(crate) fn finish(self) -> Result<()> {
        let Some((unknown, _)) = self.params.first() else { return Ok(()) };
        let subject = match self.shows_names {
            true => format!("The URL's parameter {unknown:?}"),
            false => format!("A parameter of the URL {:?}", self.shown),
        };
        if let Some(how) = elsewhere(&self.scheme, unknown) {
            return Err(Error::config(format!("{subject} is not used by this URL: {how}.")));
        }
        Err(Error::config(format!(
            "{subject} is not known. Those of {}:// are {}.",
            self.scheme,
            self.known.join(", ")
        )))
    }
}

/// What to write for a parameter that this store has in other URLs, or has by another name.
fn elsewhere(scheme: &str, parameter: &str) -> Option<&'static str> {
    Some(match (scheme, parameter) {
        ("mysql" | "mariadb", "tls_ca" | "tls_cert" | "tls_key") => {
            "connections are encrypted, and the server is verified, with tls=verify only"
        }
        ("mysql" | "mariadb", "sslmode" | "ssl" | "ssl-mode" | "ssl_mode" | "useSSL") => {
            "write tls=verify to encrypt connections"
        }
        ("redis", "tls" | "tls_ca" | "tls_cert" | "tls_key") => {
            "connections are encrypted with rediss:// in place of redis://"
        }
        ("rediss", "tls") => {
            "connections of rediss:// are always encrypted, and the server is verified"
        }
        ("redis+unix", "tls" | "tls_ca" | "tls_cert" | "tls_key") => {
            "connections to a Unix socket are not encrypted"
        }
        ("redis" | "rediss", "db") => "write the database behind the host, as in redis://host/2",
        ("postgresql" | "postgres", "tls" | "tls_ca" | "tls_cert" | "tls_key") => {
            "TLS has PostgreSQL's own parameters, sslmode, sslrootcert, sslcert and sslkey"
        }
        _ => return None,
    })
}

/// The parts of a location with users. A part that is empty is `None`.
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis"))]
pub(crate) struct Account<'a> {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    /// The servers, separated by commas.
    pub(crate) hosts: &'a str,
    /// The text behind the first slash.
    pub(crate) path: Option<String>,
}

/// A text that is not shown in messages.
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis"))]
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis"))]
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// A decimal number of these units; `None` if it is not one, or has more than 9 digits on a side of
/// the point. Parsing floating-point numbers would take tables of 10 KB.
fn multiple(number: &str, unit: Duration) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |text: &str| text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let value = |text: &str| text.bytes().fold(0, |sum, digit| 10 * sum + u32::from(digit - b'0'));
    let parts = unit.checked_mul(value(fraction))? / 10_u32.pow(fraction.len() as u32);
    unit.checked_mul(value(whole))?.checked_add(parts)
}

/// Parses `host`, `host:port` or `[ipv6]:port`; or tells what is wrong with it.
pub(crate) fn host(text: &str) -> std::result::Result<(&str, Option<u16>), &'static str> {
    let (host, rest) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() || host.len() > LONGEST_HOST || !(is_name(host) || is_ipv6(host)) {
        return Err("has no host name or address");
    }
    if rest.is_empty() {
        return Ok((host, None));
    }
    let text = rest.strip_prefix(':').ok_or("has text behind ']'")?;
    Ok((host, Some(port(text).ok_or(NO_PORT)?)))
}

/// What is wrong with a server whose [`port`] is none.
pub(crate) const NO_PORT: &str = "has no port from 1 to 65535";

/// Parses a port.
pub(crate) fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|&port| port != 0)
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
}

/// An address, with the name of a network interface behind a '%'.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, ""));
    address.parse::<Ipv6Addr>().is_ok() && is_name(zone)
}

/// The scheme in lower case, and the text behind its colon.
fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then(|| (scheme.to_ascii_lowercase(), rest))
}

fn has_forbidden(text: &str) -> bool {
    text.contains(|c: char| c == '#' || c.is_control() || c.is_whitespace())
}

fn decode(text: &str) -> Option<String> {
    percent_decode(text).and_then(|bytes| String::from_utf8(bytes).ok())
}

/// The decoded text, if it has no '@', however often that was encoded: it then contains no user and
/// no password that end with one.
fn plain(text: &str) -> Option<String> {
    decode(text).filter(|text| !text.contains(['@', '%']))
}

/// A URL for humans: its scheme, hosts and path, with `***` in place of a user and a password, and
/// the parameters in front of the first one that may be a secret. If a secret may be anywhere else,
/// only the scheme is shown, and not even that if it may be something else than a scheme.
///
/// What stands in front of the last '@' is never shown; if an encoded '@' stands behind it, nothing
/// is. Where a login is possible, a colon is shown only in front of a port.
pub fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = split_scheme(text) else { return HIDDEN.to_owned() };
    let is_long = text.len() > LONGEST_SHOWN;
    let Some(&(.., has_users)) = SCHEMES.iter().find(|(known, ..)| *known == scheme) else {
        let is_scheme = !is_long && rest.starts_with("//") && plain(text).is_some();
        return if is_scheme { format!("{scheme}:{HIDDEN}") } else { HIDDEN.to_owned() };
    };
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (slashes, path) = match location.strip_prefix("//") {
        Some(path) => ("//", path),
        None => ("", location),
    };
    let (login, place) = path.rsplit_once('@').map_or(("", path), |(_, place)| ("***@", place));
    let is_clear = |place: String| {
        let (hosts, path) = place.split_once('/').unwrap_or((&place, ""));
        let are_hosts = hosts.is_empty() || hosts.split(',').all(|text| host(text).is_ok());
        let is_path = !path.contains(':') && !place.contains(OF_PARAMETERS);
        !place.contains('&') && (!has_users || (!slashes.is_empty() && are_hosts && is_path))
    };
    let is_whole = !is_long && !has_forbidden(text) && plain(query).is_some();
    if is_whole && plain(place).is_some_and(is_clear) {
        let is_harmless = |param: &&str| {
            let clear = |text| plain(text).is_some_and(|text| !text.contains(OF_PARAMETERS));
            param
                .split_once('=')
                .is_some_and(|(name, value)| HARMLESS.contains(&name) && clear(value))
        };
        let params: Vec<&str> = query.split('&').take_while(is_harmless).collect();
        let mark = if params.is_empty() { "" } else { "?" };
        format!("{scheme}:{slashes}{login}{place}{mark}{}", params.join("&"))
    } else {
        format!("{scheme}:{HIDDEN}")
    }
}

/// Whether a text has in it the URL of a store with what may be a password or a token. The scheme may be
/// that of a server that another one stands for, or name a driver, too, as in `mysql+pymysql://`.
pub fn has_secret_url(text: &str) -> bool {
    text.match_indices(":/").any(|(end, _)| {
        let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let start = text[..end].trim_end_matches(is_of_scheme).len();
        let scheme = text[start..end].to_ascii_lowercase();
        let is_known = |name: &str| {
            scheme.ends_with(name) || scheme.split('+').any(|part| part.ends_with(name))
        };
        let rest = &text[end + 1..];
        // What is not followed by two slashes is more often a name with a path in it.
        (rest.starts_with("//") || scheme.ends_with("+unix"))
            && SCHEMES.iter().map(|(name, ..)| *name).chain(OTHERS).any(is_known)
            && may_have_secret(rest.trim_start_matches('/'))
    })
}

/// The schemes of servers that memlock's URLs give other names.
const OTHERS: [&str; 2] = ["valkey", "valkeys"];

/// Parts of the names of parameters with secrets.
const SECRETS: [&str; 4] = ["pass", "pwd", "secret", "token"];

/// Whether there may be a secret in a text that begins behind the slashes of a URL.
fn may_have_secret(text: &str) -> bool {
    let url = text.split_whitespace().next().unwrap_or_default();
    let (location, parameters) = url.split_once('?').unwrap_or((url, ""));
    let authority = location.split(['/', '#']).next().unwrap_or_default();
    // A login in which something is not encoded, or too much.
    let has_port = |place: &str| {
        let (name, port) = place.rsplit_once(':').unwrap_or((place, ""));
        name.starts_with('[') || port.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_odd = || !authority.split(',').all(has_port);
    let has_mark = || text.contains('@') || text.contains("%40");
    let is_secret = |parameter: &str| {
        let name = parameter.split('=').next().unwrap_or_default().to_lowercase();
        SECRETS.iter().any(|part| name.contains(part))
    };
    authority.contains('@') || is_odd() && has_mark() || parameters.split(['&', ';']).any(is_secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_url_comes_apart() {
        let mut url =
            Url::parse("memcached://a:1,b/?prefix=x%2Dy&io_timeout=250ms&pool=3").unwrap();
        assert_eq!((url.scheme.as_str(), url.authority()), ("memcached", Ok("a:1,b")));
        assert_eq!(url.take("prefix").as_deref(), Some("x-y"));
        let duration = url.take_duration("io_timeout", Duration::ZERO).unwrap();
        assert_eq!(duration, Duration::from_millis(250));
        assert_eq!(url.take_count("pool", 1), Ok(3));
        assert_eq!(url.finish(), Ok(()));
    }

    #[test]
    fn an_unknown_parameter_lists_the_known_ones() {
        let mut url = Url::parse("memory://x?prefiks=1").unwrap();
        url.take("prefix");
        let message = url.finish().unwrap_err().to_string();
        assert!(message.contains("prefiks") && message.contains("prefix"), "{message}");
    }

    #[test]
    fn a_parameter_that_is_known_in_another_url_says_in_which() {
        let urls: &[(&str, &str)] = &[
            #[cfg(feature = "mysql")]
            ("mysql://u@h/d?tls_ca=/x", "\"tls_ca\" is not used by this URL: connections are"),
            #[cfg(feature = "mysql")]
            ("mariadb://u@h/d?tls_key=/x&tls_cert=/x", "with tls=verify only."),
            #[cfg(feature = "mysql")]
            ("mysql://u@h/d?sslmode=require", "write tls=verify"),
            #[cfg(feature = "redis")]
            ("redis://h?tls_ca=/x", "with rediss://"),
            #[cfg(feature = "redis")]
            ("redis://h?db=2", "redis://host/2"),
            #[cfg(feature = "redis")]
            ("redis+unix:///s?tls_cert=/x", "Unix socket"),
            #[cfg(feature = "postgresql")]
            ("postgresql://u@h?tls_ca=/x", "sslrootcert"),
        ];
        for (text, says) in urls {
            let error = crate::Client::connect(text).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Config);
            let said = error.to_string();
            assert!(said.contains(says) && !said.contains("known"), "{said}");
        }
    }

    #[test]
    fn malformed_urls_are_refused() {
        for bad in [
            "",
            "localhost",
            "memcached://a?x",
            "memcached://a?x=%4",
            "memcached://a?x=1&x=2",
            "memcached://a b",
            "memcached://a#b",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["memcached://u@a", "memcached://a/b", "memcached:a"] {
            assert!(Url::parse(bad).unwrap().authority().is_err(), "{bad:?}");
        }
        for (text, millis) in
            [("1.5", 1500), (".25s", 250), ("2.", 2000), ("1.5ms", 1), ("3600s", 3_600_000)]
        {
            let mut url = Url::parse(&format!("memory://x?t={text}")).unwrap();
            let duration = url.take_duration("t", Duration::ZERO).unwrap();
            assert_eq!(duration.as_millis(), millis, "{text}");
        }
        for bad in
            ["", "-1", "1h", "NaN", "inf", "1e3", "0", "4000s", "ms", ".", "1.2.3", "+1", "0.9ms"]
        {
            let mut url = Url::parse(&format!("memory://x?t={bad}")).unwrap();
            assert!(url.take_duration("t", Duration::ZERO).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_url_with_a_secret_is_found_in_a_text() {
        for text in [
            "redis://u:secret@h",
            "REDISS://secret@h",
            "redis://u:secret%40h",
            "redis://h?Password=secret",
            "redis+unix:/s?password=secret",
            "valkey://:secret@h",
            "xredis://u:secret@h",
            "a-redis://u:secret@h",
            "memcached://u:secret@h",
            "(redis://u:secret@h), and more",
            " 'mysql://u:secret@h/d'",
            "MEMLOCK_URL=redis://u:secret@h",
            "job:postgres://u:secret%40h",
            "mysql+pymysql://u:secret@h/d",
            "postgresql+psycopg2://u:secret@h/d",
            "https://host/redis://u:secret@h",
            "redis://u:se cret@h",
            "redis://u:se/cr?e#t@h",
        ] {
            assert!(has_secret_url(text), "{text}");
        }
        for text in [
            "",
            "job",
            "redis:job:a@b",
            "mysql:backup",
            "://u:secret@h",
            "https://user:pw@example.org/page?x=1",
            "http://redis/x@y",
            "memcached://10.0.0.7:11211",
            "redis://web1:6379/0",
            "postgresql://db/app",
            "sqlite:///var/lib/locks.db",
            "mysqlx://u:pw@h",
            "redis:/cache:user",
            "queue-redis:/jobs:a@b",
            "redis://web1/a@b",
            "redis://{host}:{port}",
            "redis://web1:6379: down",
            "redis://web1/0?keyspace=1&author=2",
            "backup mysql://db/app nightly",
            "sync redis://web1:6379/0 -> postgresql://db/app of a@b",
            "docs: redis:// urls",
            "(redis://web1), \"redis://[::1]:6379\", redis://web1:1,web2:2.",
            "sqlite:///x.db?mode=ro",
            "sqlite:////data/My Files/a.db",
            "sqlite:///data/a@b.db",
            "jdbc:mysql://db:3306/app?useSSL=false",
            "postgresql+psycopg2://db/app",
        ] {
            assert!(!has_secret_url(text), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for (text, shown) in [
            ("redis://u:pa:ss@h:1/0?x=1", "redis://***@h:1/0"),
            ("redis://u:pass@h?pool=1&prefix=a&x=1&db=2", "redis://***@h?pool=1&prefix=a"),
            ("redis://:p@ss@h", "redis://***@h"),
            // A password without a colon, or a token.
            ("redis://u@h", "redis://***@h"),
            ("redis://u:p%40ss@h", "redis://***@h"),
            ("redis://u:secret%40h", "redis:***"),
            ("redis://u:secret%2540h", "redis:***"),
            ("redis://u%3Asecret@h", "redis://***@h"),
            ("redis://u%3asecret", "redis:***"),
            ("redis://u:secret", "redis:***"),
            ("redis://u:p1@h1,u:p2@h2", "redis://***@h2"),
            ("redis://u:se/cr?e#t@h", "redis:***"),
            ("redis://u:se?cret@h", "redis:***"),
            ("redis:u:secret@h", "redis:***"),
            ("redis:s3cr%40t@h", "redis:***"),
            ("redis:/u:secret@h", "redis:***"),
            ("redis:///u:secret@h", "redis://***@h"),
            ("redis:///u:secret", "redis:***"),
            ("redis://h/u:secret", "redis:***"),
            ("redis://u:p@h\n", "redis:***"),
            ("mysql://u:p@tcp(h:3306)/db", "mysql:***"),
            ("postgresql://h/db?user=u&password=a%40b", "postgresql:***"),
            ("postgresql:///d?host=/x&password=secret", "postgresql:///d?host=/x"),
            ("postgresql://u@%2Frun%2Fpg/d", "postgresql://***@%2Frun%2Fpg/d"),
            ("redis+unix:///s?Pass=secret&pool=1", "redis+unix:///s"),
            ("redis+unix:///s?Pass=se&cret@h", "redis+unix:***"),
            ("REDIS://[::1]:1,h?prefix=a&pool=1", "redis://[::1]:1,h?prefix=a&pool=1"),
            ("memcached://h:1", "memcached://h:1"),
            ("memcached://web1:abc", "memcached://web1:abc"),
            ("memcached://[::1]:1?prefix=a", "memcached://[::1]:1?prefix=a"),
            ("memcached:u:secret@h", "memcached:***@h"),
            ("sqlite:///a@b:c", "sqlite://***@b:c"),
            ("sqlite:/a%20b:c", "sqlite:/a%20b:c"),
            ("postgresql://u:pw@h/d&user=x&password=secret", "postgresql:***"),
            ("redis://h:6379/0,password=secret", "redis:***"),
            ("redis+unix:///run/r.sock&password=secret", "redis+unix:***"),
            ("redis://h?pool=1;password=secret", "redis://h"),
            ("redis://h?prefix=a%3Bpassword%3Dsecret&pool=1", "redis://h"),
            ("memcached://h&password=secret", "memcached:***"),
            ("sqlite:///env=prod/x.db", "sqlite:///env=prod/x.db"),
            ("pigeon://loft", "pigeon:***"),
            ("https://hooks.example/secret", "https:***"),
            ("pigeon://u:secret", "pigeon:***"),
            ("memcached://u:se?prefix=cret%40h", "memcached:***"),
            // What may be no scheme.
            ("rediss2://u:secret@h", "***"),
            ("postgresql+psycopg2://u:secret@h/d", "***"),
            ("jdbc:postgresql://h/d?user=u&password=secret", "***"),
            ("redis//u:secret@h", "***"),
            (" redis://u:secret@h", "***"),
            ("\u{feff}redis://u:secret@h", "***"),
            ("\"redis://u:secret@h\"", "***"),
            ("bob:secret@h", "***"),
            ("bob:secret", "***"),
            ("//u:secret@h", "***"),
            ("10.0.0.7:secret@h", "***"),
            ("u:secret@tcp(h:3306)/db", "***"),
            ("host=h user=u password=secret", "***"),
            ("-----BEGIN PRIVATE KEY-----", "***"),
            ("{\"password\": \"secret\"}", "***"),
            ("secret", "***"),
            ("", "***"),
        ] {
            assert_eq!(without_password(text), shown, "{text}");
        }
        for text in ["secret".repeat(64 * 1024 / 6), format!("redis://{}", "secret".repeat(9999))] {
            assert!(without_password(&text).len() < 10, "{}", &text[..20]);
            let error = crate::Client::connect(&text);
            assert!(!format!("{error:?}").contains("secret"), "{}", &text[..20]);
        }
        for (text, secret) in [
            ("sqlite:///u:secret@h/x", "secret"),
            ("postgresql://u:pw@h/d&user=x&password=secret", "secret"),
            ("postgresql://u%3Asecret@h/d", "secret"),
            ("mysql://u:pw@h/d;password=secret", "secret"),
            ("redis://h:6379/0&password=secret", "secret"),
            ("redis+unix:///run/r.sock&password=secret", "secret"),
            ("memcached://h?pool=1;password=secret", "secret"),
            ("redis+unix:///u:secret@h", "secret"),
            ("memcached://h?password=secret%zz", "secret"),
            ("memcached://h?secret", "secret"),
            ("memcached://h?password=a&secret=1", "secret"),
            ("memcached://h?password=a&secret=1&secret=2", "secret"),
            ("memcached://h?password=a&pool=secret", "secret"),
            ("memcached://h?pass=a&pool=secret", "secret"),
            ("memcached://h?password=a&notify=secret", "secret"),
            ("memcached://h?password=secret#", "secret"),
            ("memcached://u:se?pool=cret@h", "cret"),
            ("memcached://u:se?pool=cret%40h", "cret"),
            ("memcached://u:se?prefix=%25cret@h", "cret"),
            ("memcached://u:se?prefix=%25cret%40h", "cret"),
            ("memcached://u:se?notify=cret@h", "cret"),
            ("memcached://u:secret@h", "secret"),
            ("redis+unix:///s?password=a&secret=1", "secret"),
            ("redis+unix:///s?password=a&db=secret", "secret"),
            ("postgresql://h/d?password=a&port=secret", "secret"),
            ("postgresql://h/d?password=a&schema=se.cret", "cret"),
            ("postgresql://h/d?password=a&sslmode=secret", "secret"),
            ("postgresql://h/d?password=a&sslmode=require&sslrootcert=secret", "secret"),
            ("postgresql:///d?password=a&host=secret:x", "secret"),
            ("rediss://h?password=a&tls_ca=secret", "secret"),
            ("mysql://h/d?password=a&engine=secret", "secret"),
            ("mysql://h/d?password=a&socket=secret", "secret"),
            ("redis://u:12,secret:34%40h", "secret"),
            ("redis://u:secret@h #", "secret"),
        ] {
            let error = crate::Client::connect(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains(secret), "{error}");
        }
        let shown = format!("{:?}", Url::parse("redis://u:secret@h?password=secret").unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn what_is_no_secret_is_quoted() {
        for (text, says) in [
            ("memcached://web1:abc", "The server \"web1:abc\" in the URL has no port"),
            ("memcached://a,b c", "The URL \"memcached:***\" contains '#', white space"),
            ("redis://:pw@web1,,web2", "The server \"\" in the URL has no host name"),
            ("redis://h/x", "The URL \"redis://h/x\" has a database"),
            ("redis://:pw@h?prefiks=1", "The URL's parameter \"prefiks\" is not known"),
            ("mysql://h", "The URL \"mysql://h\" names no database"),
            ("memcached://h?pool=x", "The URL's parameter pool=\"x\" is not a whole number"),
            ("redis://h?token=a&pool=x", "The URL's parameter pool is not a whole number"),
            (
                "memcached://h?io_timeout=x",
                "The URL's parameter io_timeout=\"x\" is not a duration",
            ),
            ("memory://a/b", "The URL \"memory://a/b\" has a path"),
            ("sqlite://h/x", "The URL \"sqlite://h/x\" names a host"),
            ("sqlite:/u:p@h/x", "The URL \"sqlite:***@h/x\" has a user"),
            ("memcached://u@h", "The URL \"memcached://***@h\" has a path or a user"),
            ("pigeon://loft", "The URL \"pigeon:***\" has no scheme that memlock knows"),
        ] {
            let error = crate::Client::connect(text).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }

    /// The forms of URLs with a password, in which `PW` stands for it.
    const FORMS: [&str; 35] = [
        "SCHEME://user:PW@host/1",
        "SCHEME://user:PW@host:1/1?pool=1",
        "SCHEME://user:PW@host,other:1/1",
        "SCHEME://user:old@host,user:PW@other/1",
        "SCHEME://:PW@host/1",
        "SCHEME://PW@host/1",
        "SCHEME://PW:@host/1",
        "SCHEME://user:PW@h:0/1",
        "SCHEME://user:PW@/1",
        "SCHEME://user:PW@host?user=PW&password=PW",
        "SCHEME://user:PW%40host/1",
        "SCHEME://user%3APW%40host/1",
        "SCHEME://user%3aPW@host/1",
        "SCHEME%3A//user:PW@host/1",
        "SCHEME://user:PW@host(x)/1",
        "SCHEME://user:PW",
        "SCHEME:/user:PW@host/1",
        "SCHEME:user:PW@host/1",
        "SCHEME:///user:PW@host/x.db",
        "SCHEME://user:PW@host:1?prefix=a",
        "//user:PW@host",
        "user:PW@host",
        "SCHEME//user:PW@host/1",
        "SCHEME2://user:PW@host/1",
        "jdbc:SCHEME://host/1?user=user&password=PW",
        "SCHEME+driver://user:PW@host/1",
        "SCHEME:///1?host=host&user=user&password=PW",
        "SCHEME://host/1?passwd=PW",
        "SCHEME://host/1?pool=1&PGPASSWORD=PW",
        " SCHEME://user:PW@host/1",
        "\"SCHEME://user:PW@host/1\"",
        "\u{feff}SCHEME://user:PW@host/1\n",
        "user:PW@tcp(host:1)/1",
        "host=host user=user password=PW",
        "PW",
    ];

    /// What may stand in a password: what has a meaning in a URL, and what could spoil a terminal.
    const MARKS: [&str; 39] = [
        "@",
        ":",
        "/",
        "?",
        "#",
        "%",
        "&",
        "=",
        ",",
        ";",
        "+",
        " ",
        "'",
        "\"",
        "\\",
        "[",
        "]",
        "(",
        "äß",
        "\u{1f600}",
        "\u{1b}[",
        "\0",
        "\n",
        "%40",
        "%3A",
        "%2f",
        "%zz",
        "%2540",
        "//",
        "?pool=",
        "?prefix=",
        "?prefix=%25",
        "?notify=",
        "?network=",
        "?outage=",
        "?x=%z",
        "?a&",
        "&db=",
        "&port=",
    ];

    fn encoded(text: &str) -> String {
        let code = |byte: u8| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        text.bytes().map(code).collect()
    }

    /// Whether three characters in a row of the password are in the text, other than those of
    /// codes such as `%40`, which messages contain, too.
    fn shows(said: &str, password: &str) -> bool {
        let chars: Vec<char> = password.chars().collect();
        let mut pieces = chars.windows(3).filter(|piece| piece.iter().any(|c| "QVJ".contains(*c)));
        pieces.any(|piece| said.contains(&piece.iter().collect::<String>()))
    }

    proptest! {
        #[test]
        fn no_message_shows_a_password(
            (scheme, _, has_users) in prop::sample::select(SCHEMES.to_vec()),
            // No part of any sentence, and never a number, which is a port in some places.
            words in prop::collection::vec("[QVJ]{3,5}", 1..4),
            marks in prop::sample::subsequence(MARKS.to_vec(), 3).prop_shuffle(),
            encoding in 0..4,
        ) {
            let mut password = words[0].clone();
            for (mark, word) in marks.iter().zip(&words[1..]) {
                password = format!("{password}{mark}{word}");
            }
            let written = match encoding {
                0 => password.clone(),
                // The codes in lower case.
                1 => encoded(&password).replace("%3A", "%3a").replace("%2F", "%2f"),
                2 => encoded(&encoded(&password)),
                _ => encoded(&password),
            };
            for form in FORMS {
                // What can only be read as a host, as a port, or as the name of a store.
                let is_host = !has_users || written.contains('@');
                let is_name = form.contains("%40") && ["memory", "sqlite"].contains(&scheme);
                if (form == "SCHEME://user:PW" && is_host) || is_name {
                    continue;
                }
                let url = form.replace("SCHEME", scheme).replace("PW", &written);
                let said = match crate::Client::connect(&url) {
                    Ok(client) => format!("{client:?} {:?}", client.nodes()),
                    Err(error) => format!("{error} {error:?}"),
                };
                for said in [without_password(&url), said] {
                    let is_shown = shows(&said, &password) || shows(&said, &written);
                    prop_assert!(!is_shown, "{url}: {said}");
                }
            }
        }

        #[test]
        fn any_text_can_be_parsed(text in "\\PC{0,60}", tail in "[ -~]{0,60}") {
            let _ = Url::parse(&text).map(|url| url.authority().map(str::len));
            let _ = without_password(&text);
            let _ = Url::parse(&format!("memcached://{tail}"));
        }
    }
}
