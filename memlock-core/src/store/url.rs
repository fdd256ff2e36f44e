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
}

#[allow(dead_code, reason = "each store takes the kinds of parameters that it has")]
impl Url {
    pub(crate) fn parse(text: &str) -> Result<Url> {
        let split = text.split_once(':').filter(|(scheme, _)| {
            let mut letters = scheme.bytes();
            letters.next().is_some_and(|first| first.is_ascii_alphabetic())
                && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        });
        let Some((scheme, rest)) = split else {
            return Err(Error::config(format!(
                "The URL {:?} has no scheme: write for example memcached://host:port.",
                without_password(text)
            )));
        };
        if text.contains('#') || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Error::config(format!(
                "The URL {:?} contains '#', white space or control characters: write them as %XX.",
                without_password(text)
            )));
        }
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Url {
            scheme: scheme.to_ascii_lowercase(),
            location: location.to_owned(),
            params: Vec::new(),
            known: Vec::new(),
        };
        for param in query.split('&').filter(|param| !param.is_empty()) {
            let (name, value) = param.split_once('=').ok_or_else(|| {
                Error::config(format!(
                    "The URL's parameter {param:?} has no value: write {param}=…"
                ))
            })?;
            if url.params.iter().any(|(known, _)| known == name) {
                return Err(Error::config(format!("The URL's parameter {name:?} is given twice.")));
            }
            let value = percent_decode(value)
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .ok_or_else(|| {
                    Error::config(format!(
                        "The URL's parameter {name}={value:?} has a broken %XX code."
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
            Error::config(format!("The URL {scheme}:{location:?} has no //: write {scheme}://…"))
        })?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        if authority.contains('/') || authority.contains('@') {
            return Err(Error::config(format!(
                "The URL {:?} has a path or a user, which {scheme}:// does not know.",
                without_password(&format!("{scheme}:{location}"))
            )));
        }
        Ok(authority)
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
        let Some(text) = self.take(name) else { return Ok(default) };
        let (number, unit) = match text.strip_suffix("ms") {
            Some(number) => (number, 0.001),
            None => (text.strip_suffix('s').unwrap_or(&text), 1.0),
        };
        let plain =
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let seconds = number.parse::<f64>().ok().filter(|_| plain).map(|number| number * unit);
        match seconds {
            Some(seconds) if (0.001..=3600.0).contains(&seconds) => {
                Ok(Duration::from_secs_f64(seconds))
            }
            _ => Err(Error::config(format!(
                "The URL's parameter {name}={text:?} is not a duration from 1ms to 3600s: write for example 250ms or 2s."
            ))),
        }
    }

    /// Takes a count.
    pub(crate) fn take_count(&mut self, name: &'static str, default: usize) -> Result<usize> {
        let Some(text) = self.take(name) else { return Ok(default) };
        text.parse().map_err(|_| {
            Error::config(format!(
                "The URL's parameter {name}={text:?} is not a whole number from 0 up."
            ))
        })
    }

    /// Fails if a parameter is left that no part took.
    pub(crate) fn finish(self) -> Result<()> {
        let Some((unknown, _)) = self.params.first() else { return Ok(()) };
        Err(Error::config(format!(
            "The URL's parameter {unknown:?} is not known. Those of {}:// are {}.",
            self.scheme,
            self.known.join(", ")
        )))
    }
}

/// A URL for humans: with `***` in place of a password.
pub fn without_password(text: &str) -> String {
    let authority = text.find("//").map_or(0, |place| place + 2);
    let end = text[authority..].find(['/', '?', '#']).map_or(text.len(), |place| authority + place);
    let Some(at) = text[authority..end].rfind('@') else { return text.to_owned() };
    match text[authority..authority + at].find(':') {
        Some(colon) => {
            format!("{}:***{}", &text[..authority + colon], &text[authority + at..])
        }
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
        for bad in ["", "-1", "1h", "NaN", "inf", "1e3", "0", "4000s", "ms"] {
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
            ("sqlite:///a@b:c", "sqlite:///a@b:c"),
            ("memcached://h:1", "memcached://h:1"),
        ] {
            assert_eq!(without_password(text), shown);
        }
        let error = Url::parse("memcached://u:secret@h").unwrap().authority().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        let error = Url::parse("redis://u:secret@h #").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_can_be_parsed(text in "\\PC{0,60}", tail in "[ -~]{0,60}") {
            let _ = Url::parse(&text).map(|url| url.authority().map(str::len));
            let _ = without_password(&text);
            let _ = Url::parse(&format!("memcached://{tail}"));
        }
    }
}
