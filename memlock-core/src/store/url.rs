//! The URL that names the store: `scheme:location?name=value&…`.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::name::percent_decode;

/// A parsed URL. Each part of memlock takes the parameters that it knows; a parameter that remains
/// is a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: String,
    /// The text between the scheme's colon and the question mark, unchanged: each scheme parses it
    /// itself.
    pub(crate) location: String,
    params: Vec<(String, String)>,
    known: Vec<&'static str>,
    /// The URL without its password and its parameters, if it may contain a password: any part of
    /// it may then be a part of the password.
    redacted: Option<String>,
}

#[allow(dead_code, reason = "each store takes the kinds of parameters that it has")]
impl Url {
    pub(crate) fn parse(text: &str) -> Result<Url> {
        let split = text.split_once(':').filter(|(scheme, _)| is_scheme(scheme));
        let Some((scheme, rest)) = split else {
            return Err(Error::config(format!(
                "The URL {:?} has no scheme: write for example memcached://host:port.",
                without_secrets(text)
            )));
        };
        if text.contains('#') || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Error::config(format!(
                "The URL {:?} contains '#', white space or control characters: write them as %XX.",
                without_secrets(text)
            )));
        }
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Url {
            scheme: scheme.to_ascii_lowercase(),
            location: location.to_owned(),
            params: Vec::new(),
            known: Vec::new(),
            redacted: (without_password(text) != text).then(|| without_secrets(text)),
        };
        for (place, param) in query.split('&').filter(|param| !param.is_empty()).enumerate() {
            let (name, value) = param.split_once('=').ok_or_else(|| {
                // Its text is not shown: it may be a password.
                Error::config(format!(
                    "Parameter {} of the URL has no '=': write name=value, and '?' in other places \
                     as %3F.",
                    place + 1
                ))
            })?;
            if url.params.iter().any(|(known, _)| known == name) {
                return Err(Error::config(format!(
                    "{} is given twice.",
                    url.parameter(name, None)
                )));
            }
            let value = percent_decode(value)
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .ok_or_else(|| {
                    Error::config(format!(
                        "{} has a broken %XX code: write '%' as %25.",
                        url.parameter(name, None)
                    ))
                })?;
            url.params.push((name.to_owned(), value));
        }
        Ok(url)
    }

    /// The location of a scheme that has neither users nor paths: the text after `//`.
    pub(crate) fn authority(&self) -> Result<&str> {
        let Url { scheme, location, .. } = self;
        let authority = location.strip_prefix("//").ok_or_else(|| {
            Error::config(format!("{} has no //: write {scheme}://…", self.shown()))
        })?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        if authority.contains('/') || authority.contains('@') {
            return Err(Error::config(format!(
                "{} has a path or a user, which {scheme}:// does not know.",
                self.shown()
            )));
        }
        Ok(authority)
    }

    /// The location of a scheme with users: `//[[user]:password@]hosts[/path]`, each part decoded
    /// except the hosts.
    #[cfg(any(feature = "mysql", feature = "redis"))]
    pub(crate) fn account(&self) -> Result<Account<'_>> {
        let bad = |why: &str| {
            Error::config(format!(
                "{} {why}: write {scheme}://host:port or {scheme}://user:password@host:port.",
                self.shown(),
                scheme = self.scheme
            ))
        };
        let rest = self.location.strip_prefix("//").ok_or_else(|| bad("has no //"))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, password),
            None => (login, ""),
        };
        let decoded = |text: &str| {
            let bytes = percent_decode(text).and_then(|bytes| String::from_utf8(bytes).ok());
            let text = bytes.ok_or_else(|| bad("has a broken %XX code (write '%' as %25)"))?;
            Ok::<_, Error>(Some(text).filter(|text| !text.is_empty()))
        };
        Ok(Account {
            user: decoded(user)?,
            password: decoded(password)?.map(Secret),
            hosts,
            path: decoded(path)?,
        })
    }

    /// The URL as the subject of a sentence, without its password and its parameters.
    pub(crate) fn shown(&self) -> String {
        match &self.redacted {
            Some(redacted) => format!("The URL {redacted:?}"),
            None => format!("The URL {:?}", format!("{}:{}", self.scheme, self.location)),
        }
    }

    /// A part of the URL as the subject of a sentence: the part itself, unless it may be a part of
    /// the password.
    pub(crate) fn part(&self, what: &str, text: &str) -> String {
        match &self.redacted {
            Some(redacted) => format!("{what} in the URL {redacted:?}"),
            None => format!("{what} {text:?} in the URL"),
        }
    }

    /// A parameter as the subject of a sentence. The value is that of a parameter that memlock
    /// knows; those of others may be passwords.
    pub(crate) fn parameter(&self, name: &str, value: Option<&str>) -> String {
        match (&self.redacted, value) {
            (None, Some(value)) => format!("The URL's parameter {name}={value:?}"),
            (None, None) => format!("The URL's parameter {name:?}"),
            (Some(_), Some(_)) => {
                format!("The URL's parameter {name} (its value may be part of a password)")
            }
            (Some(redacted), None) => format!("A parameter of the URL {redacted:?}"),
        }
    }

    /// The error of a parameter's value, which its sentence may show.
    pub(crate) fn refused(&self, name: &'static str, error: Error) -> Error {
        match self.redacted {
            None => error,
            Some(_) => Error::config(format!("{} is not usable.", self.parameter(name, Some("")))),
        }
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
            None => Err(Error::config(format!(
                "{} is not a duration from {least:?} to 3600s: write for example {example}.",
                self.parameter(name, Some(&text))
            ))),
        }
    }

    /// Takes a count.
    pub(crate) fn take_count(&mut self, name: &'static str, default: usize) -> Result<usize> {
        let Some(text) = self.take(name) else { return Ok(default) };
        text.parse().map_err(|_| {
            Error::config(format!(
                "{} is not a whole number from 0 up.",
                self.parameter(name, Some(&text))
            ))
        })
    }

    /// Fails if a parameter is left that no part took.
    pub(crate) fn finish(self) -> Result<()> {
        let Some((unknown, _)) = self.params.first() else { return Ok(()) };
        Err(Error::config(format!(
            "{} is not known. Those of {}:// are {}.",
            self.parameter(unknown, None),
            self.scheme,
            self.known.join(", ")
        )))
    }
}

/// The parts of a location with users. A part that is empty is `None`.
#[cfg(any(feature = "mysql", feature = "redis"))]
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

/// As [`without_password`], and without the parameters, whose values may be secret as well.
fn without_secrets(text: &str) -> String {
    let mut shown = without_password(text);
    shown.truncate(shown.find('?').unwrap_or(shown.len()));
    shown
}

fn is_scheme(text: &str) -> bool {
    let mut letters = text.bytes();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// A URL for humans: with `***` in place of a password, and of all that follows a parameter for one.
pub fn without_password(text: &str) -> String {
    let mut shown = without_login(text);
    let mut place = shown.find('?').map_or(shown.len(), |mark| mark + 1);
    for param in shown[place..].split('&') {
        let name = param.split('=').next().unwrap_or(param);
        let has = |word: &str| {
            let mut parts = name.as_bytes().windows(word.len());
            parts.any(|part| part.eq_ignore_ascii_case(word.as_bytes()))
        };
        if ["pass", "pwd", "secret"].into_iter().any(has) {
            shown.truncate(place + name.len());
            shown.push_str("=***");
            return shown;
        }
        place += param.len() + 1;
    }
    shown
}

/// With `***` in place of the password in front of the host. It is the text from the first ':' behind
/// the scheme to the last '@' (or `%40`) of the whole text: a password that is not encoded may contain
/// every other character. Where no '/' follows a scheme, it may be the user.
fn without_login(text: &str) -> String {
    // ASCII only, so that the places in both texts are the same.
    let folded = text.to_ascii_lowercase();
    let Some(at) = folded.rfind('@').max(folded.rfind("%40")) else { return text.to_owned() };
    let start = match text.split_once(':') {
        Some((scheme, rest)) if rest.starts_with("//") => scheme.len() + 3,
        Some((scheme, rest)) if rest.starts_with('/') => scheme.len() + 1,
        _ => 0,
    };
    let Some(user) = folded.get(start..at) else { return text.to_owned() };
    let colons = [user.find(':').map(|place| place + 1), user.find("%3a").map(|place| place + 3)];
    match colons.into_iter().flatten().min() {
        Some(password) => format!("{}***{}", &text[..start + password], &text[at..]),
        None => text.to_owned(),
    }
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
    fn a_password_is_never_shown() {
        for (text, shown) in [
            ("redis://u:pa:ss@h:1/0?x=1", "redis://u:***@h:1/0?x=1"),
            ("redis://:p@ss@h", "redis://:***@h"),
            ("redis://u@h", "redis://u@h"),
            ("redis://u:p%40ss@h", "redis://u:***@h"),
            ("redis://u:secret%40h", "redis://u:***%40h"),
            ("redis://u%3Asecret@h", "redis://u%3A***@h"),
            ("redis://u:se/cr?e#t@h", "redis://u:***@h"),
            ("redis:u:secret@h", "redis:***@h"),
            ("redis:s3cr%40t@h", "redis:***@h"),
            ("bob:secret@h", "bob:***@h"),
            ("postgresql:///d?host=/x&password=secret", "postgresql:///d?host=/x&password=***"),
            ("redis+unix:///s?Pass=se&cret@h", "redis+unix:///s?Pass=***"),
            ("redis://u:se@h?password=cret&pool=1", "redis://u:***@h?password=***"),
            ("redis://h?prefix=a&pool=1", "redis://h?prefix=a&pool=1"),
            ("redis:/u:secret@h", "redis:/u:***@h"),
            ("redis:///u:secret@h", "redis:///u:***@h"),
            ("//u:secret@h", "//u:***@h"),
            ("10.0.0.7:secret@h", "10.0.0.7:***@h"),
            ("sqlite:///a@b:c", "sqlite:///a@b:c"),
            ("memcached://h:1", "memcached://h:1"),
            ("memcached://[::1]:1?prefix=a", "memcached://[::1]:1?prefix=a"),
        ] {
            assert_eq!(without_password(text), shown);
        }
        for (text, secret) in [
            ("memcached://h?password=secret%zz", "secret"),
            ("memcached://h?secret", "secret"),
            ("memcached://h?password=secret#", "secret"),
            ("memcached://u:se?pool=cret@h", "cret"),
            ("memcached://u:se?prefix=%25cret@h", "cret"),
            ("memcached://u:se?notify=cret@h", "cret"),
        ] {
            let error = crate::Client::connect(text).unwrap_err().to_string();
            assert!(!error.contains(secret), "{error}");
        }
        let error = Url::parse("memcached://u:secret@h").unwrap().authority().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        let error = Url::parse("redis://u:secret@h #").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    proptest! {
        #[test]
        fn no_error_shows_a_password(
            start in prop::sample::select(vec![
                "memcached://", "memcached:/", "memcached:", "memcached:///", "sqlite://", "redis://", "//",
            ]),
            // No word of any sentence.
            first in "[XYZ]{3,8}",
            mark in prop::sample::select(vec![
                "/", "#", "?", "?pool=", "?prefix=%25", "?notify=", "?network=", "?outage=", "?x=%z", "?a&", "@", ":",
                ",", " ", "%40", "%zz", "",
            ]),
            last in "[XYZ]{3,8}",
            at in prop::sample::select(vec!["@", "%40"]),
            end in prop::sample::select(vec!["host", "host/x.db", "host:1?prefix=a", "h,i", "h:0"]),
        ) {
            let url = format!("{start}user:{first}{mark}{last}{at}{end}");
            let shown = without_password(&url);
            prop_assert!(!shown.contains(&first) && !shown.contains(&last), "{url}: {shown}");
            if let Err(error) = crate::Client::connect(&url) {
                let said = error.to_string();
                prop_assert!(!said.contains(&first) && !said.contains(&last), "{url}: {said}");
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
