//! Where a unit is: `iscsi://host[:port][/target-name[/lun]]`.

use std::fmt;
use std::str::FromStr;

/// The port that the IANA gave to iSCSI.
pub const PORT: u16 = 3260;

/// The address of a logical unit. Without a target name: the first that discovery answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// Host name or address, without the brackets of IPv6.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// iSCSI name of the target.
    pub target: Option<String>,
    /// Logical unit number, flat: below 16384.
    pub lun: u16,
}

impl Url {
    /// Host and port as `connect` wants them.
    #[must_use]
    pub fn portal(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// The same unit behind another portal, written `host[:port][,group]` as targets do (RFC 7143 13.8).
    ///
    /// # Errors
    /// A sentence that says what is wrong with the portal.
    pub fn at_portal(&self, portal: &str) -> Result<Self, String> {
        let portal = portal.split(',').next().unwrap_or_default();
        let (host, port) = split_portal(portal)?;
        Ok(Self { host, port, ..self.clone() })
    }
}

/// The largest number of the flat space addressing method (SAM-6 4.7.7.2).
const LUN_MAX: u16 = 0x3fff;

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text
            .strip_prefix("iscsi://")
            .ok_or_else(|| format!("{text:?} is not iscsi://HOST[:PORT][/TARGET-NAME[/LUN]]"))?;
        let mut parts = rest.splitn(3, '/');
        let (host, port) = split_portal(parts.next().unwrap_or_default())?;
        let target = parts.next().filter(|name| !name.is_empty()).map(str::to_owned);
        let lun = match parts.next().filter(|lun| !lun.is_empty()) {
            None => 0,
            Some(lun) => lun
                .parse()
                .ok()
                .filter(|lun| *lun <= LUN_MAX)
                .ok_or_else(|| format!("{lun:?} is not a LUN: a number from 0 to {LUN_MAX}"))?,
        };
        Ok(Self { host, port, target, lun })
    }
}

fn split_portal(portal: &str) -> Result<(String, u16), String> {
    let (host, rest) = match portal.strip_prefix('[') {
        Some(bracketed) => {
            bracketed.split_once(']').ok_or_else(|| format!("{portal:?} lacks the ] of its IPv6 address"))?
        }
        None => portal.split_at(portal.find(':').unwrap_or(portal.len())),
    };
    if host.is_empty() {
        return Err(format!("{portal:?} names no host"));
    }
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => PORT,
        Some(port) => port.parse().map_err(|_| format!("{port:?} is not a port"))?,
        None => return Err(format!("{rest:?} after the IPv6 address is not :PORT")),
    };
    Ok((host.to_owned(), port))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "iscsi://[{}]:{}", self.host, self.port)?,
            false => write!(f, "iscsi://{}:{}", self.host, self.port)?,
        }
        match &self.target {
            Some(target) => write!(f, "/{target}/{}", self.lun),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms() {
        for (text, host, port, target, lun) in [
            ("iscsi://a", "a", 3260, None, 0),
            ("iscsi://a:77/", "a", 77, None, 0),
            ("iscsi://10.0.0.1/iqn.2026-01.io.x:y", "10.0.0.1", 3260, Some("iqn.2026-01.io.x:y"), 0),
            ("iscsi://[fe80::1]:9/iqn.x/3", "fe80::1", 9, Some("iqn.x"), 3),
            ("iscsi://[::1]/eui.02004567A425678D/16383", "::1", 3260, Some("eui.02004567A425678D"), 16383),
        ] {
            let url: Url = text.parse().expect(text);
            assert_eq!((&*url.host, url.port, url.target.as_deref(), url.lun), (host, port, target, lun), "{text}");
            assert_eq!(url.to_string().parse(), Ok(url));
        }
    }

    #[test]
    fn what_is_no_url_says_so() {
        for text in
            ["a/b", "iscsi://", "iscsi://:1/x", "iscsi://a:x", "iscsi://[::1", "iscsi://[::1]9", "iscsi://a/b/c"]
        {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
        assert!("iscsi://a/b/16384".parse::<Url>().is_err());
    }

    #[test]
    fn a_portal_of_a_target_replaces_host_and_port() {
        let url: Url = "iscsi://a:1/iqn.x/2".parse().expect("good");
        assert_eq!(url.at_portal("[::1]:3261,1").map(|u| u.to_string()), Ok("iscsi://[::1]:3261/iqn.x/2".to_owned()));
    }
}
