//! What an initiator offers at login, and what was agreed (RFC 7143 clause 13).

use crate::chap::Chap;
use lunar_iscsi::text;

/// The largest data segment before anything was agreed (13.12).
pub const SEGMENT_DEFAULT: u32 = 8192;
/// MaxBurstLength before anything was agreed (13.13).
const MAX_BURST_DEFAULT: u32 = 262_144;
/// FirstBurstLength before anything was agreed (13.14).
const FIRST_BURST_DEFAULT: u32 = 65_536;
/// The range of all lengths that are negotiated (13.12 to 13.14).
const LENGTHS: std::ops::RangeInclusive<u64> = 512..=0xff_ffff;

/// Whether digests are offered, and how strongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DigestOffer {
    /// `None` alone.
    #[default]
    Never,
    /// `None,CRC32C`: the target may ask for it.
    IfWanted,
    /// `CRC32C,None`.
    Prefer,
    /// `CRC32C` alone.
    Require,
}

impl DigestOffer {
    fn list(self) -> &'static str {
        match self {
            Self::Never => "None",
            Self::IfWanted => "None,CRC32C",
            Self::Prefer => "CRC32C,None",
            Self::Require => "CRC32C",
        }
    }
}

/// What is offered. Lengths are bytes, 512 to 16777215.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// The target's iSCSI name; `None` asks for a discovery session.
    pub target: Option<String>,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// What proves the initiator's name, if it is to be proved.
    pub chap: Option<Chap>,
    /// HeaderDigest.
    pub header_digest: DigestOffer,
    /// DataDigest.
    pub data_digest: DigestOffer,
    /// The largest data segment that this initiator takes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength.
    pub max_burst_length: u32,
    /// FirstBurstLength.
    pub first_burst_length: u32,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxOutstandingR2T, 1 to 65535.
    pub max_outstanding_r2t: u32,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            initiator: "iqn.2026-01.io.lunar:initiator".to_owned(),
            target: None,
            // The format "random" (11.12.5) with nothing random: whoever opens several sessions sets the last bytes.
            isid: [0x80, 0, 0, 0, 0, 0],
            chap: None,
            header_digest: DigestOffer::Never,
            data_digest: DigestOffer::Never,
            max_recv_data_segment_length: 262_144,
            max_burst_length: 16_776_192,
            first_burst_length: 262_144,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: 8,
        }
    }
}

impl Offer {
    /// The text that names both ends; it comes first.
    #[must_use]
    pub(crate) fn names(&self) -> Vec<u8> {
        let mut out = Vec::new();
        text::put(&mut out, "InitiatorName", &self.initiator);
        match &self.target {
            Some(target) => {
                text::put(&mut out, "SessionType", "Normal");
                text::put(&mut out, "TargetName", target);
            }
            None => text::put(&mut out, "SessionType", "Discovery"),
        }
        out
    }

    /// The text of the operational stage.
    #[must_use]
    pub(crate) fn operational(&self) -> Vec<u8> {
        let mut out = Vec::new();
        text::put(&mut out, "HeaderDigest", self.header_digest.list());
        text::put(&mut out, "DataDigest", self.data_digest.list());
        text::put(&mut out, "MaxRecvDataSegmentLength", self.max_recv_data_segment_length);
        text::put(&mut out, "DefaultTime2Wait", 2);
        text::put(&mut out, "DefaultTime2Retain", 0);
        text::put(&mut out, "ErrorRecoveryLevel", 0);
        if self.target.is_none() {
            return out;
        }
        text::put(&mut out, "InitialR2T", text::yes_or_no(self.initial_r2t));
        text::put(&mut out, "ImmediateData", text::yes_or_no(self.immediate_data));
        text::put(&mut out, "MaxBurstLength", self.max_burst_length);
        text::put(&mut out, "FirstBurstLength", self.first_burst_length);
        text::put(&mut out, "MaxOutstandingR2T", self.max_outstanding_r2t);
        text::put(&mut out, "MaxConnections", 1);
        text::put(&mut out, "DataPDUInOrder", "Yes");
        text::put(&mut out, "DataSequenceInOrder", "Yes");
        out
    }
}

impl Offer {
    /// The key of a digest that was to be and was not agreed on.
    pub(crate) fn misses(&self, agreed: &Agreed) -> Option<&'static str> {
        let digests = [
            ("HeaderDigest", self.header_digest, agreed.header_digest),
            ("DataDigest", self.data_digest, agreed.data_digest),
        ];
        let missed = digests.iter().find(|(_, offer, is_on)| *offer == DigestOffer::Require && !is_on);
        missed.map(|(key, ..)| *key)
    }
}

/// What was agreed. Starts with what RFC 7143 says holds when nobody speaks of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Headers carry a digest.
    pub header_digest: bool,
    /// Data segments carry a digest.
    pub data_digest: bool,
    /// The largest data segment that the target takes.
    pub target_segment: u32,
    /// The largest data segment that this initiator takes.
    pub initiator_segment: u32,
    /// The largest sequence of Data-In or Data-Out.
    pub max_burst_length: u32,
    /// The most unsolicited data of a command.
    pub first_burst_length: u32,
    /// Only immediate data is unsolicited.
    pub initial_r2t: bool,
    /// Data may come with the command.
    pub immediate_data: bool,
    /// R2Ts that a command may have outstanding.
    pub max_outstanding_r2t: u32,
}

impl Default for Agreed {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            target_segment: SEGMENT_DEFAULT,
            initiator_segment: SEGMENT_DEFAULT,
            max_burst_length: MAX_BURST_DEFAULT,
            first_burst_length: FIRST_BURST_DEFAULT,
            initial_r2t: true,
            immediate_data: true,
            max_outstanding_r2t: 1,
        }
    }
}

/// What a key of the target asks of the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// Nothing.
    Understood,
    /// To say that the key is not known.
    Unknown,
}

impl Agreed {
    /// Takes in a key that the target sent. Values that were not on offer are errors.
    ///
    /// # Errors
    /// The key, when its value is none of those that the offer allows.
    pub(crate) fn take<'k>(&mut self, offer: &Offer, key: &'k str, value: &str) -> Result<Heard, &'k str> {
        if [text::REJECT, text::IRRELEVANT, text::NOT_UNDERSTOOD].contains(&value) {
            return Ok(Heard::Understood);
        }
        let length = |most: u32| {
            let value = text::number(value).filter(|value| LENGTHS.contains(value)).ok_or(key)?;
            u32::try_from(value).ok().filter(|value| *value <= most).ok_or(key)
        };
        let boolean = || text::boolean(value).ok_or(key);
        let digest = |offer: DigestOffer| {
            text::list(offer.list()).find(|offered| *offered == value).map(|chosen| chosen != text::NONE).ok_or(key)
        };
        match key {
            "HeaderDigest" => self.header_digest = digest(offer.header_digest)?,
            "DataDigest" => self.data_digest = digest(offer.data_digest)?,
            "MaxRecvDataSegmentLength" => self.target_segment = length(u32::MAX)?,
            "MaxBurstLength" => self.max_burst_length = length(offer.max_burst_length)?,
            "FirstBurstLength" => self.first_burst_length = length(offer.first_burst_length)?,
            // The result is "or": an answer of No means something only to an offer of No.
            "InitialR2T" => self.initial_r2t = boolean()? || offer.initial_r2t,
            "ImmediateData" => self.immediate_data = boolean()? && offer.immediate_data,
            "MaxOutstandingR2T" => {
                let value = text::number(value).and_then(|value| u32::try_from(value).ok()).ok_or(key)?;
                self.max_outstanding_r2t =
                    Some(value).filter(|v| (1..=offer.max_outstanding_r2t).contains(v)).ok_or(key)?;
            }
            "MaxConnections"
            | "DefaultTime2Wait"
            | "DefaultTime2Retain"
            | "ErrorRecoveryLevel"
            | "DataPDUInOrder"
            | "DataSequenceInOrder"
            | "TargetAlias"
            | "TargetPortalGroupTag"
            | "TargetAddress"
            | "AuthMethod"
            | "SessionType"
            | "IFMarker"
            | "OFMarker" => {}
            _ => return Ok(Heard::Unknown),
        }
        Ok(Heard::Understood)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(offer: &Offer, pairs: &[(&str, &str)]) -> Result<Agreed, String> {
        let mut agreed = Agreed::default();
        for (key, value) in pairs {
            agreed.take(offer, key, value)?;
        }
        Ok(agreed)
    }

    #[test]
    fn results_of_negotiation() {
        let offer = Offer { header_digest: DigestOffer::Prefer, target: Some("iqn.x".into()), ..Offer::default() };
        let answer = [
            ("HeaderDigest", "CRC32C"),
            ("DataDigest", "None"),
            ("MaxRecvDataSegmentLength", "0x10000"),
            ("MaxBurstLength", "1048576"),
            ("FirstBurstLength", "8192"),
            ("InitialR2T", "No"),
            ("ImmediateData", "No"),
            ("MaxOutstandingR2T", "2"),
        ];
        let want = Agreed {
            header_digest: true,
            target_segment: 65536,
            max_burst_length: 1_048_576,
            first_burst_length: 8192,
            initial_r2t: false,
            immediate_data: false,
            max_outstanding_r2t: 2,
            ..Agreed::default()
        };
        assert_eq!(agreed(&offer, &answer), Ok(want));
    }

    #[test]
    fn refusals_leave_the_default() {
        let answer =
            [("InitialR2T", "Reject"), ("MaxBurstLength", "Irrelevant"), ("MaxOutstandingR2T", "NotUnderstood")];
        assert_eq!(agreed(&Offer::default(), &answer), Ok(Agreed::default()));
    }

    #[test]
    fn what_was_not_on_offer_is_an_error() {
        let offer = Offer { first_burst_length: 4096, ..Offer::default() };
        for (key, value) in [
            ("HeaderDigest", "CRC32C"),
            ("FirstBurstLength", "8192"),
            ("MaxBurstLength", "511"),
            ("MaxRecvDataSegmentLength", "16777216"),
            ("InitialR2T", "Maybe"),
            ("MaxOutstandingR2T", "0"),
            ("MaxOutstandingR2T", "9"),
        ] {
            assert_eq!(agreed(&offer, &[(key, value)]), Err(key.to_owned()), "{key}={value}");
        }
    }

    #[test]
    fn a_digest_that_must_be_is_missed() {
        let offer = Offer { data_digest: DigestOffer::Require, ..Offer::default() };
        let missed = |pairs: &[_]| offer.misses(&agreed(&offer, pairs).expect("good"));
        assert_eq!(missed(&[("DataDigest", "CRC32C")]), None);
        assert_eq!(missed(&[("DataDigest", "Reject")]), Some("DataDigest"));
        assert_eq!(missed(&[]), Some("DataDigest"));
        assert_eq!(Offer::default().misses(&Agreed::default()), None);
    }

    #[test]
    fn initial_r2t_is_or_and_immediate_data_is_and() {
        let offer = Offer { initial_r2t: true, immediate_data: false, ..Offer::default() };
        let agreed = agreed(&offer, &[("InitialR2T", "No"), ("ImmediateData", "Yes")]).expect("good");
        assert!(agreed.initial_r2t && !agreed.immediate_data);
    }

    #[test]
    fn keys_nobody_knows() {
        let mut agreed = Agreed::default();
        assert_eq!(agreed.take(&Offer::default(), "X-com.example", "1"), Ok(Heard::Unknown));
        assert_eq!(agreed.take(&Offer::default(), "TargetAlias", "disk"), Ok(Heard::Understood));
    }

    #[test]
    fn discovery_offers_nothing_of_commands() {
        let text = String::from_utf8(Offer::default().operational()).expect("text");
        assert!(text.contains("MaxRecvDataSegmentLength=262144\0") && !text.contains("InitialR2T"));
        assert!(Offer::default().names().ends_with(b"SessionType=Discovery\0"));
    }
}
