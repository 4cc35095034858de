//! Where the registers and doorbells of a controller lie in BAR 0 (NVMe Base 2.0 3.1.3, NVMe over PCIe 1.0 3.1.2).

use lunar_core::wire::le;
use lunar_nvme::controller::property;
use std::mem::offset_of;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The registers of a controller, as far as any is not zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Layout {
    /// Controller Capabilities.
    pub cap: le::U64,
    /// Version.
    pub vs: le::U32,
    /// Interrupt Mask Set.
    pub intms: le::U32,
    /// Interrupt Mask Clear.
    pub intmc: le::U32,
    /// Controller Configuration.
    pub cc: le::U32,
    reserved: le::U32,
    /// Controller Status.
    pub csts: le::U32,
    /// NVM Subsystem Reset.
    pub nssr: le::U32,
    /// Admin Queue Attributes.
    pub aqa: le::U32,
    /// Admin Submission Queue Base Address.
    pub asq: le::U64,
    /// Admin Completion Queue Base Address.
    pub acq: le::U64,
}

const _: () = {
    assert!(offset_of!(Layout, cap) == property::CAP as usize);
    assert!(offset_of!(Layout, vs) == property::VS as usize);
    assert!(offset_of!(Layout, intms) == 0x0c && offset_of!(Layout, intmc) == 0x10);
    assert!(offset_of!(Layout, cc) == property::CC as usize);
    assert!(offset_of!(Layout, csts) == property::CSTS as usize);
    assert!(offset_of!(Layout, nssr) == property::NSSR as usize);
    assert!(offset_of!(Layout, aqa) == 0x24 && offset_of!(Layout, asq) == 0x28 && offset_of!(Layout, acq) == 0x30);
    assert!(size_of::<Layout>() == 0x38);
};

impl Layout {
    /// All registers are zero.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

/// A register that a host can write, by its word of four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Register {
    /// Interrupt Mask Set.
    InterruptMaskSet,
    /// Interrupt Mask Clear.
    InterruptMaskClear,
    /// Controller Configuration.
    Configuration,
    /// Admin Queue Attributes.
    AdminQueueAttributes,
    /// The lower or upper half of Admin Submission Queue Base Address.
    AdminSubmissionQueue(Half),
    /// The lower or upper half of Admin Completion Queue Base Address.
    AdminCompletionQueue(Half),
    /// A doorbell, by its number: twice the queue identifier, one more for a completion queue.
    Doorbell(usize),
}

/// A half of a register of eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// Bits 31:0.
    Lower,
    /// Bits 63:32.
    Upper,
}

impl Half {
    /// The register with this half replaced.
    #[must_use]
    pub fn replaced(self, register: u64, value: u32) -> u64 {
        match self {
            Self::Lower => register >> 32 << 32 | u64::from(value),
            Self::Upper => register << 32 >> 32 | u64::from(value) << 32,
        }
    }
}

/// Bytes of BAR 0.
pub const BAR_LEN: u32 = 0x4000;
/// Where the doorbells begin in BAR 0.
pub const DOORBELLS: u32 = 0x1000;
/// Bytes of the page that holds all doorbells.
pub const DOORBELLS_LEN: usize = 0x1000;
/// Bytes of a doorbell (CAP.DSTRD is zero).
pub const STRIDE: usize = 4;

impl Register {
    /// The register at this offset of BAR 0. `None` when there is none that a host can write.
    #[must_use]
    pub fn at(offset: u32) -> Option<Self> {
        const INTMS: u32 = offset_of!(Layout, intms) as u32;
        const INTMC: u32 = offset_of!(Layout, intmc) as u32;
        const CC: u32 = offset_of!(Layout, cc) as u32;
        const AQA: u32 = offset_of!(Layout, aqa) as u32;
        const ASQ: u32 = offset_of!(Layout, asq) as u32;
        const ASQ_UPPER: u32 = ASQ + 4;
        const ACQ: u32 = offset_of!(Layout, acq) as u32;
        const ACQ_UPPER: u32 = ACQ + 4;
        Some(match offset {
            INTMS => Self::InterruptMaskSet,
            INTMC => Self::InterruptMaskClear,
            CC => Self::Configuration,
            AQA => Self::AdminQueueAttributes,
            ASQ => Self::AdminSubmissionQueue(Half::Lower),
            ASQ_UPPER => Self::AdminSubmissionQueue(Half::Upper),
            ACQ => Self::AdminCompletionQueue(Half::Lower),
            ACQ_UPPER => Self::AdminCompletionQueue(Half::Upper),
            DOORBELLS..BAR_LEN if offset.is_multiple_of(STRIDE as u32) => {
                Self::Doorbell((offset - DOORBELLS) as usize / STRIDE)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_the_register_of_the_specification() {
        let found: Vec<(u32, Register)> =
            (0..0x1010).step_by(2).filter_map(|offset| Some((offset, Register::at(offset)?))).collect();
        let wanted = [
            (0x0c, Register::InterruptMaskSet),
            (0x10, Register::InterruptMaskClear),
            (0x14, Register::Configuration),
            (0x24, Register::AdminQueueAttributes),
            (0x28, Register::AdminSubmissionQueue(Half::Lower)),
            (0x2c, Register::AdminSubmissionQueue(Half::Upper)),
            (0x30, Register::AdminCompletionQueue(Half::Lower)),
            (0x34, Register::AdminCompletionQueue(Half::Upper)),
            (0x1000, Register::Doorbell(0)),
            (0x1004, Register::Doorbell(1)),
            (0x1008, Register::Doorbell(2)),
            (0x100c, Register::Doorbell(3)),
        ];
        assert_eq!(found, wanted);
        assert_eq!((Register::at(BAR_LEN - 4), Register::at(BAR_LEN)), (Some(Register::Doorbell(0xbff)), None));
    }

    #[test]
    fn golden_bytes_are_the_fields_of_the_registers() {
        let bytes: [u8; 0x38] = std::array::from_fn(|at| at as u8);
        let layout = Layout::read_from_bytes(&bytes).expect("56 bytes");
        assert_eq!((layout.cap.get(), layout.cc.get()), (0x0706_0504_0302_0100, 0x1716_1514));
        assert_eq!((layout.asq.get(), layout.aqa.get()), (0x2f2e_2d2c_2b2a_2928, 0x2726_2524));
        assert_eq!(layout.as_bytes(), bytes);
        assert_eq!(Half::Lower.replaced(0x1111_1111_2222_2222, 0x33), 0x1111_1111_0000_0033);
        assert_eq!(Half::Upper.replaced(0x1111_1111_2222_2222, 0x33), 0x0000_0033_2222_2222);
    }
}
