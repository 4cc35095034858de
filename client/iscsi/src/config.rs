//! Login parameters: the values that an initiator offers, and those that were negotiated (RFC 7143 clause 13).

use crate::chap::Chap;
use lunar_iscsi::text;

/// MaxRecvDataSegmentLength of both sides before the login declares another (13.12).
pub const SEGMENT_DEFAULT: u32 = 8192;
/// MaxBurstLength unless another is negotiated (13.13).
const MAX_BURST_DEFAULT: u32 = 262_144;
/// FirstBurstLength unless another is negotiated (13.14).
const FIRST_BURST_DEFAULT: u32 = 65_536;
/// The valid range of all negotiated lengths, in bytes (13.12 to 13.14).
const LENGTHS: std::ops::RangeInclusive<u64> = 512..=0xff_ffff;

/// The value list that is offered for a digest key, in order of preference (13.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DigestOffer {
    /// `None`: no digest.
    #[default]
    Never,
    /// `None,CRC32C`: a digest if the target prefers one.
    IfWanted,
    /// `CRC32C,None`: a digest if the target supports it.
    Prefer,
    /// `CRC32C`: the login fails without a digest.
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

/// The parameters that are offered at login. Lengths are in bytes, from 512 to 16,777,215.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// The target's iSCSI name; `None` starts a discovery session.
    pub target: Option<String>,
    /// The ISID: the initiator's part of the session identifier (11.12.5).
    pub isid: [u8; 6],
    /// The CHAP account of this initiator; `None` offers no authentication.
    pub chap: Option<Chap>,
    /// The offer for HeaderDigest.
    pub header_digest: DigestOffer,
    /// The offer for DataDigest.
    pub data_digest: DigestOffer,
    /// MaxRecvDataSegmentLength: the longest data segment that the target may send.
    pub max_recv_data_segment_length: u32,
    /// The offer for MaxBurstLength.
    pub max_burst_length: u32,
    /// The offer for FirstBurstLength.
    pub first_burst_length: u32,
    /// The offer for InitialR2T.
    pub initial_r2t: bool,
    /// The offer for ImmediateData.
    pub immediate_data: bool,
    /// The offer for MaxOutstandingR2T, from 1 to 65535.
    pub max_outstanding_r2t: u32,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            initiator: "iqn.2026-01.io.lunar:initiator".to_owned(),
            target: None,
            // ISID type "random" (11.12.5). A caller that opens several sessions sets the last bytes to different
            // values.
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
    /// The keys of the first login request: the names of both sides and the session type.
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

    /// The keys of the first request in the operational negotiation stage.
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
    /// The digest key that the offer requires and the target did not accept; `None` if there is none.
    pub(crate) fn missing_digest(&self, agreed: &Agreed) -> Option<&'static str> {
        let digests = [
            ("HeaderDigest", self.header_digest, agreed.header_digest),
            ("DataDigest", self.data_digest, agreed.data_digest),
        ];
        let missed = digests.iter().find(|(_, offer, is_on)| *offer == DigestOffer::Require && !is_on);
        missed.map(|(key, ..)| *key)
    }
}

/// The negotiated parameters. The default is what RFC 7143 prescribes for keys that are not negotiated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Whether headers carry a digest.
    pub header_digest: bool,
    /// Whether data segments carry a digest.
    pub data_digest: bool,
    /// The longest data segment that the target accepts, in bytes.
    pub target_segment: u32,
    /// The longest data segment that this initiator accepts, in bytes.
    pub initiator_segment: u32,
    /// The longest sequence of Data-In or solicited Data-Out PDUs, in bytes.
    pub max_burst_length: u32,
    /// The most unsolicited data of one command, immediate data included, in bytes.
    pub first_burst_length: u32,
    /// Whether all data but immediate data requires an R2T.
    pub initial_r2t: bool,
    /// Whether immediate data is allowed.
    pub immediate_data: bool,
    /// The most R2Ts that one command may have outstanding.
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

/// How a key of the target was processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyOutcome {
    /// The key is known: no reply is due.
    Understood,
    /// The key is unknown: the reply is NotUnderstood.
    Unknown,
}

impl Agreed {
    /// Applies one key that the target sent.
    ///
    /// # Errors
    /// The key, if the offer does not allow its value.
    pub(crate) fn take<'k>(&mut self, offer: &Offer, key: &'k str, value: &str) -> Result<KeyOutcome, &'k str> {
        if [text::REJECT, text::IRRELEVANT, text::NOT_UNDERSTOOD].contains(&value) {
            return Ok(KeyOutcome::Understood);
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
            // The result is the OR of both values: the target's No counts only if No was offered.
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
            _ => return Ok(KeyOutcome::Unknown),
        }
        Ok(KeyOutcome::Understood)
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
    fn negotiated_values_replace_the_defaults() {
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
    fn a_rejected_key_keeps_its_default() {
        let answer =
            [("InitialR2T", "Reject"), ("MaxBurstLength", "Irrelevant"), ("MaxOutstandingR2T", "NotUnderstood")];
        assert_eq!(agreed(&Offer::default(), &answer), Ok(Agreed::default()));
    }

    #[test]
    fn a_value_that_was_not_offered_is_an_error() {
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
    fn a_required_digest_that_was_not_negotiated_is_reported() {
        let offer = Offer { data_digest: DigestOffer::Require, ..Offer::default() };
        let missed = |pairs: &[_]| offer.missing_digest(&agreed(&offer, pairs).expect("good"));
        assert_eq!(missed(&[("DataDigest", "CRC32C")]), None);
        assert_eq!(missed(&[("DataDigest", "Reject")]), Some("DataDigest"));
        assert_eq!(missed(&[]), Some("DataDigest"));
        assert_eq!(Offer::default().missing_digest(&Agreed::default()), None);
    }

    #[test]
    fn initial_r2t_is_the_or_of_both_and_immediate_data_the_and() {
        let offer = Offer { initial_r2t: true, immediate_data: false, ..Offer::default() };
        let agreed = agreed(&offer, &[("InitialR2T", "No"), ("ImmediateData", "Yes")]).expect("good");
        assert!(agreed.initial_r2t && !agreed.immediate_data);
    }

    #[test]
    fn unknown_keys_are_not_understood() {
        let mut agreed = Agreed::default();
        assert_eq!(agreed.take(&Offer::default(), "X-com.example", "1"), Ok(KeyOutcome::Unknown));
        assert_eq!(agreed.take(&Offer::default(), "TargetAlias", "disk"), Ok(KeyOutcome::Understood));
    }

    #[test]
    fn a_discovery_session_offers_no_keys_of_normal_sessions() {
        let text = String::from_utf8(Offer::default().operational()).expect("text");
        assert!(text.contains("MaxRecvDataSegmentLength=262144\0") && !text.contains("InitialR2T"));
        assert!(Offer::default().names().ends_with(b"SessionType=Discovery\0"));
    }
}
