"""Masks email addresses, public IP addresses and phone numbers."""

import dataclasses
import ipaddress
import re
from typing import Literal

from groundup.core.config import config
from groundup.corpus.document import Document

_EMAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9][\w.+-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}\b"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{1,4}(?![\w:])")
_PHONE = re.compile(
    r"(?<![\w+.-])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){2,4}"
    r"|\(\d{3}\) ?\d{3}[ .-]\d{4}|\d{3}[.-]\d{3}[.-]\d{4})(?![\w-]|\.\d)"
)
# A part of every address and number: looking for it alone takes a tenth of the time.
_WITHIN_IPV4 = re.compile(r"\.\d{1,3}\.\d")
_WITHIN_PHONE = re.compile(r"[-. ]\d{4}")


@config
class MaskPii:
    """Replaces what may lead to a person by what leads to nobody.

    The default replacements are reserved for examples (RFC 2606, RFC 5737, RFC 3849, and 555-01xx of the
    North American plan). Only addresses of the public internet are masked: 127.0.0.1 and 10.0.0.1 stay.

    Attributes:
        email: Mask email addresses.
        ip: Mask IP addresses, of version 4 and 6.
        phone: Mask phone numbers in international form, or as written in North America.
        email_mask: What stands for an email address.
        ipv4_mask: What stands for an IP address of version 4.
        ipv6_mask: The same for version 6.
        phone_mask: What stands for a phone number.
    """

    kind: Literal["mask_pii"] = "mask_pii"
    email: bool = True
    ip: bool = True
    phone: bool = False
    email_mask: str = "email@example.com"
    ipv4_mask: str = "192.0.2.1"
    ipv6_mask: str = "2001:db8::1"
    phone_mask: str = "555-0100"

    def apply(self, document: Document) -> Document:
        """Returns the document with its text masked."""
        text = document.text
        if self.email and "@" in text:
            text = _EMAIL.sub(lambda found: self.email_mask, text)
        if self.ip:
            if _WITHIN_IPV4.search(text):
                text = _IPV4.sub(lambda found: _masked(found[0], self.ipv4_mask), text)
            if "::" in text or text.count(":") >= 7:
                text = _IPV6.sub(lambda found: _masked(found[0], self.ipv6_mask), text)
        if self.phone and ("+" in text or _WITHIN_PHONE.search(text)):
            text = _PHONE.sub(lambda found: self.phone_mask, text)
        return document if text == document.text else dataclasses.replace(document, text=text)


def _masked(address: str, mask: str) -> str:
    try:
        return mask if ipaddress.ip_address(address).is_global else address
    except ValueError:  # 300.1.2.3, or a time of day
        return address
